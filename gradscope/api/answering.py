"""``why``: a first pass over every parameter's gradient, and a full sample if gradients are
missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api._selection import Selection, disagreements, problems_first, replies, select
from gradscope.api.explaining import (
    CAUSED,
    NON_FINITE,
    explained,
    find_origins,
    state_of,
    unexplained,
)
from gradscope.api.failing import explained_failure, fail
from gradscope.api.opened import Options, opened, read, run_info, versions
from gradscope.capture.hooks import select_layers
from gradscope.config.reading import LoadedConfig
from gradscope.errors import Interrupted, interruption
from gradscope.loading.workload import Workload
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.rules import severity
from gradscope.running.gradients import GradientObserver, observe_gradients
from gradscope.running.rerun import rerun


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
    """The line of a config's file that freezes parameters."""
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
    """The names of the parameters that the selected modules own."""
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
    """Return the causes, then other requested names. Of names, only the answers that concern
    them.
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
