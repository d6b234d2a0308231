"""``why``: a first pass over every parameter's gradient, and a full sample if gradients are
missing, zero or not finite.

Each explanation runs a step again and restores everything. Healthy and frozen parameters have an
answer if they are named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope import progress
from gradscope.api.failing import explained_failure, fail
from gradscope.api.opened import Options, opened, read, run_info, versions
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_modules, named_parameters
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import Interrupted, interruption
from gradscope.explain.missing.explain_missing import explain_missing
from gradscope.explain.non_finite.explain_non_finite import explain_non_finite
from gradscope.explain.zero.explain_zero import explain_zeros
from gradscope.loading.workload import Workload
from gradscope.patterns import Named, Pattern, matching
from gradscope.records.answers import Answer, NonFiniteOrigin, WhyReport
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.rules import severity
from gradscope.running.gradients import GradientObserver, observe_gradients
from gradscope.running.rerun import StepsUntilGradient, rerun
from gradscope.running.step import Step, repeated
from gradscope.typeset.numbers import number, plural

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
        states: those of ``missing``, ``zero`` and ``non-finite`` to explain.
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
    for n in range(max(0, first - 1), first + 1):
        with progress.within("the origin of a NaN or Inf"), rerun(workload, n) as step:
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


@dataclass(frozen=True, slots=True)
class Selection:
    """Parameters and modules by their first names.

    Attributes:
        parameters: requested by name or by a pattern.
        modules: requested by name, with the parameters in each.
        frozen: parameters that the config's ``freeze`` patterns select; ``frozen_at`` is its line.
    """

    parameters: tuple[str, ...] = ()
    modules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    frozen: frozenset[str] = frozenset()
    frozen_at: str | None = None

    @property
    def all(self) -> frozenset[str]:
        """Return every selected parameter, by name or inside a module."""
        inside = (name for _, names in self.modules for name in names)
        return frozenset((*self.parameters, *inside))

    @property
    def any(self) -> bool:
        """True if names select a parameter or a module."""
        return bool(self.parameters or self.modules)


def select(
    model: nn.Module, names: Sequence[str], freeze: Sequence[str], frozen_at: str | None
) -> Selection:
    """Select parameters and modules by names and patterns.

    A pattern that matches parameters selects these; one that matches modules only selects modules.
    A plain name selects whatever has that name.

    Raises:
        LayerError: a name or a pattern that matches nothing; the message suggests a close one.
    """
    parameters = list(named_parameters(model).values())
    modules = {named.name: module for module, named in named_modules(model).items()}
    frozen: frozenset[str] = frozenset()
    if freeze:
        frozen = frozenset(n.name for n in matching(list(freeze), parameters, what="parameter"))
    if not names:
        return Selection((), (), frozen, frozen_at)
    candidates = [*parameters, *named_modules(model).values()]
    chosen = {id(named) for named in matching(list(names), candidates, what="parameter or layer")}
    own = [named.name for named in parameters if id(named) in chosen]
    patterns = [p for p in map(Pattern, names) if not p.negated]
    for_modules = [p for p in patterns if _means_modules(p, parameters)]
    layers = [
        named.name
        for named in candidates[len(parameters) :]
        if id(named) in chosen and any(p.matches(named) for p in for_modules)
    ]
    named = {p: each.name for p, each in named_parameters(model).items()}
    inside = tuple(
        (name, tuple(dict.fromkeys(named[p] for p in modules[name].parameters())))
        for name in layers
    )
    return Selection(tuple(own), inside, frozen, frozen_at)


def _means_modules(pattern: Pattern, parameters: Sequence[Named]) -> bool:
    """Return True if the pattern selects modules rather than parameters."""
    plain = "*" not in pattern.text and not pattern.text.startswith("re:")
    return plain or not any(pattern.matches(named) for named in parameters)


def replies(
    selection: Selection,
    parameters: Sequence[ParameterStats],
    calls: Sequence[ModuleCall],
    causes: Sequence[Answer],
) -> Iterator[Answer]:
    """Yield the answers for requested names without a cause in ``causes``."""
    states = {p.name: p for p in parameters}
    done = {name for answer in causes for name in answer.upstream}
    frozen = [
        name
        for name in states
        if name in selection.all and not states[name].requires_grad and name not in done
    ]
    yield from _frozen(selection, frozen)
    for name in selection.parameters:
        if name in states and name not in done and name not in frozen:
            yield _healthy(name, states[name])
    for name, inside in selection.modules:
        trains = [states[p] for p in inside if p in states and p not in frozen]
        if not inside:
            yield _without_parameters(name, [call for call in calls if call.name == name])
        elif trains and not any(p.name in done for p in trains):
            yield _module(name, trains)


def _frozen(selection: Selection, names: Sequence[str]) -> Iterator[Answer]:
    by_config = [name for name in names if name in selection.frozen]
    by_code = [name for name in names if name not in selection.frozen]
    for upstream, location, reason, advice in (
        (by_config, selection.frozen_at, "by the config's `freeze`", "change `freeze`"),
        (by_code, None, "set by the model's code", "set it to True before training"),
    ):
        if upstream:
            at = f" at {location}" if location else ""
            yield Answer(
                upstream[0],
                "parameter",
                MISSING,
                f"requires_grad is False: {reason}{at}.",
                cause="frozen",
                location=location,
                upstream=tuple(upstream),
                advice=f"{advice}, if {'it' if len(upstream) == 1 else 'these'} should train",
            )


def _healthy(name: str, parameter: ParameterStats) -> Answer:
    gradient = parameter.gradient
    norm = None if gradient is None else gradient.norm
    message = "it gets a gradient" + ("" if norm is None else f" of norm {number(norm)}")
    zeros = None if gradient is None else gradient.zeros
    if gradient is not None and zeros and gradient.numel:
        message += f"; {zeros} of its {gradient.numel} elements are zero"
    return Answer(name, "parameter", HEALTHY, f"{message}.", upstream=(name,))


def _module(name: str, parameters: Sequence[ParameterStats]) -> Answer:
    norms = [p.gradient.norm for p in parameters if p.gradient and p.gradient.norm is not None]
    message = (
        f"{'all ' if len(parameters) > 1 else ''}{plural(len(parameters), 'parameter')} of it "
    )
    message += f"{'get' if len(parameters) > 1 else 'gets'} a gradient"
    message += f" of norm {number(math.hypot(*norms))}" if norms else ""
    upstream = tuple(p.name for p in parameters)
    return Answer(name, "module", HEALTHY, f"{message}.", module=name, upstream=upstream)


def _without_parameters(name: str, calls: Sequence[ModuleCall]) -> Answer:
    """Answer for a module without parameters: does a gradient reach its output?"""
    if not calls:
        return Answer(
            name,
            "module",
            MISSING,
            f"`{name or 'the model'}` never ran.",
            cause="not-called",
            module=name,
            advice="call it in `forward`, or remove it",
        )
    gradients = [out.gradient for call in calls for out in call.outputs if out.gradient]
    if not gradients:
        message = "its output gets no gradient; it has no parameters."
        return Answer(name, "module", MISSING, message, module=name, call=calls[0].call)
    norm = math.hypot(*(g.norm for g in gradients if g.norm is not None))
    if norm == 0:
        message = "its output gradient is zero; it has no parameters."
        return Answer(name, "module", ZERO, message, module=name, call=calls[0].call)
    message = f"its output gradient has norm {number(norm)}; it has no parameters."
    return Answer(name, "module", HEALTHY, message, module=name)


def disagreements(selection: Selection, parameters: Sequence[ParameterStats]) -> Iterator[Answer]:
    """Yield answers for parameters that should be frozen, but are not."""
    thawed = [p.name for p in parameters if p.requires_grad and p.name in selection.frozen]
    if thawed:
        at = f" at {selection.frozen_at}" if selection.frozen_at else ""
        yield Answer(
            thawed[0],
            "parameter",
            HEALTHY,
            f"the config's `freeze` selects it{at}, but after forward requires_grad is True.",
            cause="frozen",
            location=selection.frozen_at,
            upstream=tuple(thawed),
            advice="look for `requires_grad_(True)` in the model's code",
        )
    misspelt: dict[str, list[str]] = {}
    for parameter in parameters:
        for flag in parameter.misspelt if parameter.requires_grad else ():
            misspelt.setdefault(flag, []).append(parameter.name)
    for flag, names in misspelt.items():
        yield Answer(
            names[0],
            "parameter",
            HEALTHY,
            f"`{flag}` was set on it; PyTorch ignores that, so it still trains.",
            cause="misspelt",
            upstream=tuple(names),
            advice="write `requires_grad`",
        )


def problems_first(answers: Sequence[Answer], order: Mapping[str, int]) -> tuple[Answer, ...]:
    """Sort answers in the order of the model, problems before healthy ones."""
    worst = {state: i for i, state in enumerate(("non-finite", MISSING, ZERO, HEALTHY))}
    return tuple(
        sorted(
            answers,
            key=lambda a: (
                a.state == HEALTHY and a.cause is None,
                a.cause == "frozen" and a.state == MISSING,
                worst[a.state],
                order.get(a.name, len(order)),
            ),
        )
    )


def why(
    model: nn.Module | LoadedConfig | str | Path,
    inputs: Any = None,
    names: str | Sequence[str] = (),
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    optimizer: Any = None,
    mode: str | None = None,
    gradient: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> WhyReport:
    """Explain each trainable parameter without a useful gradient: the cause, and its line.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a spec such as
            ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``.
        names: parameters and layers, by name or pattern, to explain in any state.
        target: as for ``gradscope.inspect``.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        optimizer: a callable that takes the parameters and returns an optimizer, for the check
            after a step; None: as in the config, else SGD.
        mode: "train" or "eval"; None keeps a live module's own modes.
        gradient: the external vector for a loss that is not a scalar.
        device, dtype: the device and dtype of a config's model; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made, and before forward.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The answers: one per cause and place, and one for each requested name that is healthy.

    Raises:
        ModelError: the model or the loss raised; ``.report`` has the answers so far, ``__cause__``
            is the exception.
        GradscopeError: the config, a name or a file is wrong.
    """
    options = Options.of(locals())
    names = (names,) if isinstance(names, str) else tuple(names)
    source = read(model, options)
    with opened(source, options, WhyReport) as workload:
        return _answered(workload, names, frozen_at=_frozen_at(source))


def _frozen_at(source: nn.Module | LoadedConfig) -> str | None:
    """Return the line of a config's file that freezes parameters."""
    place = None if isinstance(source, nn.Module) else source.place("freeze")
    if place is None or not place.file.endswith((".yaml", ".yml")):
        return None
    return f"{place.file}:{place.line}"


def _answered(workload: Workload, names: Sequence[str], *, frozen_at: str | None) -> WhyReport:
    inside = _inside(workload.model, workload.layers)
    selection = select(workload.model, names, workload.config.get("freeze") or (), frozen_at)
    quiet = [name for name, parameters in selection.modules if not parameters]
    traced = workload if workload.steps > 1 else replace(workload, make_optimizer=None)
    began = time.perf_counter()
    observer = observe_gradients(traced, quiet)
    took = time.perf_counter() - began
    parameters = tuple(p for p in observer.parameters if {p.name, *p.aliases} & inside)
    error = explained_failure(traced, observer, seconds=took)
    report = WhyReport(
        run_info(workload, (), steps=observer.number + 1),
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        checked=sum(p.requires_grad for p in parameters) if observer.complete else 0,
        frozen=sum(not p.requires_grad for p in parameters),
        error=error,
    )
    observer.recorder = None
    if observer.complete:
        failure = observer.failure
        stopped = failure if isinstance(failure, KeyboardInterrupt) else None
        causes: Iterable[Answer] = ()
        try:
            if stopped is None:
                causes = _causes(workload, parameters, observer)
        except KeyboardInterrupt as error:
            stopped = error
        causes = causes if stopped is None else unexplained(parameters)
        report = _with(report, _answers(causes, parameters, selection, observer.calls))
        if stopped is not None and failure is None:
            reason = f"{interruption(stopped)} during the full sample"
            raise Interrupted(reason, "causes were not searched", report=report) from None
    if observer.failure is not None:
        fail(observer, report)
    return report


def _inside(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Return the names of the parameters that the selected modules own."""
    return {
        f"{named.name}.{name}".lstrip(".")
        for module, named in select_layers(model, patterns).items()
        for name, _ in module.named_parameters(recurse=False)
    }


def _causes(
    workload: Workload, parameters: Sequence[ParameterStats], observer: GradientObserver
) -> tuple[Answer, ...]:
    """Explain the unusable gradients of the last step."""
    states = {state_of(p) for p in parameters if p.requires_grad}
    if not states & CAUSED:
        return ()
    first = observer.number if observer.first_nonfinite is None else observer.first_nonfinite
    origins = find_origins(workload, first) if NON_FINITE in states else ()
    with rerun(workload, observer.number, weights=None) as step:
        return explained(step, parameters, origins=origins)


def _answers(
    causes: Iterable[Answer],
    parameters: Sequence[ParameterStats],
    selection: Selection,
    calls: Sequence[ModuleCall],
) -> tuple[Answer, ...]:
    """Return the causes, then other requested names. If names are given, only the answers that
    concern them.
    """
    answers = [*causes, *disagreements(selection, parameters)]
    if selection.any:
        answers = [answer for answer in answers if selection.all & {answer.name, *answer.upstream}]
        answers += replies(selection, parameters, calls, answers)
    return problems_first(answers, {p.name: i for i, p in enumerate(parameters)})


def _with(report: WhyReport, answers: tuple[Answer, ...]) -> WhyReport:
    """Return the report with answers and the resulting status."""
    status = report.status
    if report.error is None and any(severity(answer) for answer in answers):
        status = "findings"
    return replace(report, answers=answers, status=status)
