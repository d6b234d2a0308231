"""Explain parameters without a useful gradient: missing, zero, or not finite.

Runs only if something is wrong. Each explanation runs a step again and restores everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradscope import progress
from gradscope.explain.missing.explain_missing import explain_missing
from gradscope.explain.non_finite.explain_non_finite import explain_non_finite
from gradscope.explain.zero.explain_zero import explain_zeros
from gradscope.loading.workload import Workload
from gradscope.records.answers import Answer, NonFiniteOrigin
from gradscope.records.modules import ParameterStats
from gradscope.running.rerun import StepsUntilGradient, rerun
from gradscope.running.step import Step, repeated

MISSING, ZERO, NON_FINITE, HEALTHY = "missing", "zero", "non-finite", "healthy"

#: States of a gradient that have a cause.
CAUSED = frozenset([MISSING, ZERO, NON_FINITE])

_MESSAGES = {
    MISSING: "no gradient arrives",
    ZERO: "the gradient is all zeros",
    NON_FINITE: "the gradient has NaN or Inf",
}
#: The message if no cause was found, and the advice.
_UNSEEN = (
    "the full sample did not find the cause.",
    "try another `seed`; random operations and scripted code cannot be traced",
)
_STOPPED = ("interrupted before the search for its cause.", "run it again, and let it finish")


def state_of(parameter: ParameterStats) -> str:
    """Return the state of a parameter's gradient, also for a frozen one."""
    gradient = parameter.gradient
    if gradient is None:
        return MISSING
    if gradient.nan or gradient.inf:
        return NON_FINITE
    if gradient.numel and gradient.norm == 0:
        return ZERO
    return HEALTHY


def explained(
    step: Step,
    parameters: Sequence[ParameterStats],
    *,
    states: Collection[str] = CAUSED,
    origins: Sequence[NonFiniteOrigin] = (),
) -> tuple[Answer, ...]:
    """Explain the unusable gradients of trainable parameters, one answer per cause and place.

    Args:
        step: the sampled step, to run again; its weights may change.
        parameters: their records in that step; frozen and healthy ones are skipped.
        states: which of ``missing``, ``zero`` and ``non-finite`` to explain.
        origins: the origins of NaN and Inf.
    """
    names: dict[str, list[str]] = {MISSING: [], ZERO: [], NON_FINITE: []}
    for parameter in parameters:
        state = state_of(parameter)
        if parameter.requires_grad and state in names and state in states:
            names[state].append(parameter.name)
    answers: list[Answer] = []
    if names[MISSING]:
        with progress.within("why gradients are missing"), repeated(step) as again:
            answers += explain_missing(again.workload.model, again.loss, names[MISSING])
    answers += _of_origins(origins, names[NON_FINITE])
    if names[ZERO]:  # last, because it moves the weights
        with progress.within("why gradients are zero"):
            answers += _zero(step, names[ZERO])
    answered = {name for answer in answers for name in answer.upstream}
    for state, listed in names.items():
        answers += _without_cause(state, [name for name in listed if name not in answered])
    order = {parameter.name: i for i, parameter in enumerate(parameters)}
    return tuple(sorted(answers, key=lambda answer: order.get(answer.name, len(order))))


def find_origins(workload: Workload, first: int) -> tuple[NonFiniteOrigin, ...]:
    """Find the operations that produced NaN or Inf from finite numbers.

    Args:
        workload: the workload of the run.
        first: the first step with a NaN or Inf. The optimizer's step before it may be the origin.
    """
    for number in range(max(0, first - 1), first + 1):
        with progress.within("the origin of a NaN or Inf"), rerun(workload, number) as step:
            update = None if step.optimizer is None else step.update
            inputs = _inputs(step)
            found = explain_non_finite(
                workload.model, step.loss, step.backward, update, inputs=inputs
            )
        if found:
            return found
    return ()


def unexplained(parameters: Sequence[ParameterStats]) -> Iterator[Answer]:
    """Yield the answers of the first pass, without a search for causes."""
    for state in _MESSAGES:
        names = [p.name for p in parameters if p.requires_grad and state_of(p) == state]
        yield from _without_cause(state, names, _STOPPED)


def _zero(step: Step, names: Sequence[str]) -> tuple[Answer, ...]:
    """Explain zero gradients, and test if a few steps change them."""
    # The search goes back through the graph in several runs.
    workload = replace(step.workload, retain_graph=True, repeats=1)
    with repeated(replace(step, workload=workload)) as again:
        later = StepsUntilGradient(again, names)
        return explain_zeros(workload.model, again.loss, again.backward, names, later=later)


def _inputs(step: Step) -> dict[str, Any]:
    """Return the inputs of the model and of the loss, by their names in records."""
    named: dict[str, Any] = dict(step.named_inputs)
    target = step.clone.target
    target = step.workload.criterion.target if target is None else target
    return named if "target" in named else {**named, "target": target}


def _without_cause(
    state: str, names: Sequence[str], why: tuple[str, str] = _UNSEEN
) -> Iterator[Answer]:
    """Yield an answer without a cause for gradients that the second run did not explain."""
    if names:
        yield Answer(
            names[0],
            "parameter",
            state,
            f"{_MESSAGES[state]}; {why[0]}",
            upstream=tuple(names),
            advice=why[1],
        )


def _of_origins(origins: Sequence[NonFiniteOrigin], names: Sequence[str]) -> Iterator[Answer]:
    """Yield one answer per origin, for the parameters that it spread to; a single origin gets
    all."""
    left = list(names)
    for origin in origins:
        upstream = [name for name in left if name in origin.spread or name == origin.name]
        if len(origins) == 1:
            upstream = left
        left = [name for name in left if name not in upstream]
        if upstream:
            yield _of_origin(origin, upstream)


def _of_origin(origin: NonFiniteOrigin, upstream: Sequence[str]) -> Answer:
    return Answer(
        name=upstream[0],
        kind="parameter",
        state=NON_FINITE,
        message=origin.message,
        module=origin.name if origin.phase in ("forward", "backward", "loss") else None,
        call=origin.call,
        location=origin.location,
        upstream=tuple(upstream),
        advice=origin.advice,
    )
