"""``why``: one cheap look at every parameter's gradient, and a deep one where it is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope import config as configs
from gradscope.api._asking import Asked, asked_for, disagreements, problems_first, replies
from gradscope.api._looking import before, look
from gradscope.api.explaining import explained, unlooked
from gradscope.api.failing import explained_failure
from gradscope.api.runs import (
    fail,
    live_workload,
    load_workload,
    read_config,
    run_info,
    unloaded,
    versions,
)
from gradscope.capture.hooks import select_layers
from gradscope.errors import Interrupted, ModelError
from gradscope.loading import Workload
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.rules import severity
from gradscope.running.switches import switches_kept


def why(
    model: nn.Module | str | Path,
    inputs: Any = None,
    names: str | Sequence[str] = (),
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
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
    """Say for each trainable parameter without a useful gradient the one cause, and where.

    Args:
        model: a live module, which is given back exactly as it was, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``.
        names: parameters and layers, by name or pattern, that are answered whatever their state.
        target: as for ``gradscope.inspect``.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        optimizer: what takes the parameters and makes the optimizer for the look after one step;
            None takes the config's, else SGD.
        mode: "train" or "eval"; None keeps a live module's own modes.
        gradient: the external vector for a loss that is not a scalar.
        device, dtype: where and in what precision a config's model runs; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made and again before forward.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The answers: one per cause and place, and one for each name that was asked and is well.

    Raises:
        ModelError: the model or the loss raised; ``.report`` has the answers as far as there are
            any, ``__cause__`` the exception.
        GradscopeError: the config, a name or a file is not right.
    """
    asked = (names,) if isinstance(names, str) else tuple(names)
    settings = {
        "mode": mode,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "autocast": autocast,
        "loss": loss,
        "gradient": gradient,
        "optimizer": optimizer,
    }
    if isinstance(model, nn.Module):
        with live_workload(model, settings, inputs=inputs, target=target) as workload:
            return _answered(workload, asked, restore=True)
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    loaded = read_config(model, settings | {"target": target}, overrides, live)
    return why_config(loaded, names=asked, allow=allow, **live)


@switches_kept()
def why_config(
    loaded: configs.LoadedConfig,
    *,
    names: Sequence[str] = (),
    exclude: Sequence[str] = (),
    allow: Sequence[str] = (),
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> WhyReport:
    """Load what a config names and answer; live ``inputs`` and ``loss`` replace the config's.

    The parameters of the layers that the config's patterns less ``exclude`` select are looked at.

    Raises:
        GradscopeError: as ``why``.
    """
    try:
        workload = load_workload(loaded, allow, inputs=inputs, loss=loss)
    except ModelError as error:
        run, record = unloaded(loaded, error)
        data = loaded.config.model_dump(mode="json")
        error.report = WhyReport(
            run, status="failed", versions=versions(), config=data, error=record
        )
        raise
    patterns = (*workload.layers, *(f"!{pattern}" for pattern in exclude))
    place = loaded.place("freeze")
    in_file = place is not None and place.file.endswith((".yaml", ".yml"))
    frozen_at = f"{place.file}:{place.line}" if place is not None and in_file else None
    return _answered(workload, names, patterns=patterns, frozen_at=frozen_at, restore=False)


def _answered(
    workload: Workload,
    names: Sequence[str],
    *,
    patterns: Sequence[str] = ("**",),
    frozen_at: str | None = None,
    restore: bool,
) -> WhyReport:
    inside = _inside(workload.model, patterns)
    asked = asked_for(workload.model, names, workload.config.get("freeze") or (), frozen_at)
    quiet = [name for name, parameters in asked.modules if not parameters]
    began = time.perf_counter()
    found = look(workload, quiet, restore=restore)
    took = time.perf_counter() - began
    parameters = tuple(p for p in found.parameters if {p.name, *p.aliases} & inside)
    error = None
    if found.failure is not None:
        error = explained_failure(
            workload,
            found.failure,
            found.phase,
            found.executing(),
            seconds=took,
            restore=restore,
        )
    report = WhyReport(
        run_info(workload, (), steps=found.last + 1),
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        checked=sum(p.requires_grad for p in parameters) if found.complete else 0,
        frozen=sum(not p.requires_grad for p in parameters),
        error=error,
    )
    found.recorder = None
    if found.complete:
        stopped = isinstance(found.failure, KeyboardInterrupt)
        told: Iterable[Answer] = ()
        try:
            if not stopped:
                told = _causes(workload, parameters, found.last, restore=restore)
        except KeyboardInterrupt:
            stopped = True
        told = unlooked(parameters) if stopped else told
        report = _with(report, _answers(told, parameters, asked, found.calls))
        if stopped and found.failure is None:
            said = "interrupted while looking closer: causes were not looked for"
            raise Interrupted(said, report=report) from None
    if found.failure is not None:
        fail(found, report)
    return report


def _inside(model: nn.Module, patterns: Sequence[str]) -> set[str]:
    """The names of the parameters that the selected modules own."""
    return {
        f"{named.name}.{name}".lstrip(".")
        for module, named in select_layers(model, patterns).items()
        for name, _ in module.named_parameters(recurse=False)
    }


def _causes(
    workload: Workload, parameters: Sequence[ParameterStats], last: int, *, restore: bool
) -> tuple[Answer, ...]:
    """Why gradients are not useful in the last step that was run."""
    if not last:
        return explained(workload, parameters, restore=restore)
    with before(workload, last) as there:
        return explained(there, parameters, restore=False)


def _answers(
    told: Iterable[Answer],
    parameters: Sequence[ParameterStats],
    asked: Asked,
    calls: Sequence[ModuleCall],
) -> tuple[Answer, ...]:
    """The causes, then what else was asked for. Of names, only the answers that concern them."""
    told = [*told, *disagreements(asked, parameters)]
    if asked.any:
        told = [answer for answer in told if asked.all & {answer.name, *answer.behind}]
        told += replies(asked, parameters, calls, told)
    return problems_first(told, {p.name: i for i, p in enumerate(parameters)})


def _with(report: WhyReport, answers: tuple[Answer, ...]) -> WhyReport:
    """The report with answers, and the status that they make."""
    status = report.status
    if report.error is None and any(severity(answer) for answer in answers):
        status = "findings"
    return replace(report, answers=answers, status=status)
