"""Why parameters have no useful gradient: missing, zero, or not finite. Deep looks, run only where
something is wrong; each runs the model again and leaves it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gradscope.api._later import Later
from gradscope.capture.calls import call_tensors
from gradscope.capture.graph import edge_of, walk
from gradscope.explain.births import find_births
from gradscope.explain.cuts import explain_missing
from gradscope.explain.zeros import explain_zeros
from gradscope.loading import Batch, Workload
from gradscope.records.answers import Answer, Birth
from gradscope.records.modules import ParameterStats
from gradscope.running.onlookers import onlookers_silent
from gradscope.running.plain import backward, fresh, loss_of
from gradscope.running.state import (
    deeper_recursion,
    gradients_kept,
    kept_as_found,
    run_eagerly,
)
from gradscope.running.steps import input_name

#: Arguments, keyword arguments and target.
Given = tuple[tuple[Any, ...], dict[str, Any], Any]

MISSING, ZERO, NON_FINITE, HEALTHY = "missing", "zero", "non-finite", "healthy"

_SAID = {
    MISSING: "no gradient arrives",
    ZERO: "the gradient is all zeros",
    NON_FINITE: "the gradient has a NaN or an infinity",
}
#: What is said where no cause is known, and what to do.
_UNSEEN = (
    "a second run, watched closely, did not show where that comes from.",
    "see whether it lasts with another `seed`: what comes by chance cannot be"
    " followed, nor what scripted code does",
)
_STOPPED = ("interrupted before its cause was looked for.", "run it again, and let it finish")


def state_of(parameter: ParameterStats) -> str:
    """What became of a parameter's gradient; of one that is frozen too."""
    gradient = parameter.gradient
    if gradient is None:
        return MISSING
    if gradient.nan or gradient.inf:
        return NON_FINITE
    if gradient.numel and gradient.norm == 0:
        return ZERO
    return HEALTHY


def explained(
    workload: Workload,
    parameters: Sequence[ParameterStats],
    *,
    states: Collection[str] = (MISSING, ZERO, NON_FINITE),
    births: Sequence[Birth] | None = None,
    restore: bool = True,
) -> tuple[Answer, ...]:
    """Why trainable parameters have no useful gradient, one answer per cause and place.

    Args:
        workload: what was run.
        parameters: what the run found; those that are frozen or healthy are passed over.
        states: which of ``missing``, ``zero`` and ``non-finite`` to explain.
        births: where NaN and infinities came from, where somebody looked already.
        restore: give the weights back after each look, for a model that somebody goes on to use.
    """
    names: dict[str, list[str]] = {MISSING: [], ZERO: [], NON_FINITE: []}
    for parameter in parameters:
        state = state_of(parameter)
        if parameter.requires_grad and state in names and state in states:
            names[state].append(parameter.name)
    batches = workload.batches()
    batch = next(batches, None) if any(names.values()) else None
    if batch is None:
        return ()
    run = _Again(workload, batch, restore)
    answers: list[Answer] = []
    if names[MISSING]:
        answers += run.missing(names[MISSING])
    if names[NON_FINITE]:
        found = run.births() if births is None else births
        answers += _born(found, names[NON_FINITE])
    if names[ZERO]:  # at the end, for it moves the weights
        answers += run.zero(names[ZERO], batches)
    told = {name for answer in answers for name in answer.behind}
    for state, listed in names.items():
        answers += _unexplained(state, [name for name in listed if name not in told])
    order = {parameter.name: i for i, parameter in enumerate(parameters)}
    return tuple(sorted(answers, key=lambda answer: order.get(answer.name, len(order))))


def named_inputs(workload: Workload, given: Given) -> dict[str, Any]:
    """What the model and the loss are given, by the names that a record has for them."""
    args, kwargs, target = given
    named = {input_name(path, len(args)): t for path, t in call_tensors(args, kwargs)}
    target = workload.criterion.target if target is None else target
    return named if "target" in named else {**named, "target": target}


@dataclass(slots=True)
class _Again:
    """The step once more, for one deep look at a time."""

    workload: Workload
    batch: Batch
    restore: bool

    @contextlib.contextmanager
    def _kept(self, *, weights: bool) -> Iterator[contextlib.ExitStack]:
        with contextlib.ExitStack() as kept:
            kept.enter_context(kept_as_found(self.workload.model, weights=weights))
            kept.enter_context(onlookers_silent(self.workload.model))
            kept.enter_context(run_eagerly())
            kept.enter_context(deeper_recursion())
            if isinstance(self.workload.criterion.spec, nn.Module):
                kept.enter_context(kept_as_found(self.workload.criterion.spec, weights=weights))
            yield kept

    def missing(self, names: Sequence[str]) -> tuple[Answer, ...]:
        """What cuts these off from the loss."""
        args, kwargs, target = fresh(self.batch)
        with self._kept(weights=self.restore):
            return explain_missing(
                self.workload.model, lambda: loss_of(self.workload, args, kwargs, target), names
            )

    def zero(self, names: Sequence[str], following: Iterator[Batch]) -> tuple[Answer, ...]:
        """What makes these zero, and whether a few steps change that."""
        with self._kept(weights=self.restore) as kept:
            return explain_zeros(
                self.workload.model,
                self._forward(kept, lambda: fresh(self.batch)),
                self._backward,
                names,
                later=Later(self.workload, names, self.batch, following, self.once_more),
            )

    def births(self) -> tuple[Birth, ...]:
        """Where a NaN or an infinity came out of finite numbers."""
        with self._kept(weights=self.restore) as kept:
            given = fresh(self.batch)
            forward = self._forward(kept, lambda: given)
            inputs = named_inputs(self.workload, given)
            return find_births(self.workload.model, forward, self._backward, inputs=inputs)

    def _forward(
        self, kept: contextlib.ExitStack, given: Callable[[], Given]
    ) -> Callable[[], torch.Tensor]:
        """Seeded forward and loss; leaves of nobody's get their ``.grad`` back at the end."""
        own = set(self.workload.model.parameters())

        def forward() -> torch.Tensor:
            args, kwargs, target = given()
            loss = loss_of(self.workload, args, kwargs, target)
            if loss.requires_grad:
                mine = own | {t for _, t in call_tensors(args, kwargs)}
                leaves = walk([edge_of(loss)], set()).leaves
                kept.enter_context(gradients_kept([leaf for leaf in leaves if leaf not in mine]))
            return loss

        return forward

    def _backward(self, loss: torch.Tensor) -> None:
        backward(loss, replace(self.workload, retain_graph=True))

    def once_more(self, batch: Batch) -> None:
        """A plain forward and backward, which leaves gradients."""
        with contextlib.ExitStack() as kept:
            self._backward(self._forward(kept, lambda: fresh(batch))())


def unlooked(parameters: Sequence[ParameterStats]) -> Iterator[Answer]:
    """What the first look found, where nobody came to look for causes."""
    for state in _SAID:
        names = [p.name for p in parameters if p.requires_grad and state_of(p) == state]
        yield from _unexplained(state, names, _STOPPED)


def _unexplained(
    state: str, names: Sequence[str], why: tuple[str, str] = _UNSEEN
) -> Iterator[Answer]:
    """What a second run did not explain is told all the same."""
    if names:
        yield Answer(
            names[0],
            "parameter",
            state,
            f"{_SAID[state]}; {why[0]}",
            behind=tuple(names),
            advice=why[1],
        )


def _born(births: Sequence[Birth], names: Sequence[str]) -> Iterator[Answer]:
    """One answer per birth, for the parameters that it spread to; the first has all others."""
    left = list(names)
    for i, birth in enumerate(births):
        behind = [name for name in left if name in birth.spread or name == birth.name]
        if i == 0 and len(births) == 1:
            behind = left
        left = [name for name in left if name not in behind]
        if behind:
            yield _of_birth(birth, behind)


def _of_birth(birth: Birth, behind: Sequence[str]) -> Answer:
    return Answer(
        name=behind[0],
        kind="parameter",
        state=NON_FINITE,
        message=birth.message,
        module=birth.name if birth.phase in ("forward", "backward", "loss") else None,
        call=birth.call,
        location=birth.location,
        behind=tuple(behind),
        advice=birth.advice,
    )
