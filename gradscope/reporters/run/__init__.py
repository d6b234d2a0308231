"""Text on a training run; and the names of its models and layers, which all of it uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gradscope.patterns import Named, matching
from gradscope.records.report import Report
from gradscope.records.training import RUN, LayerSeries, RunHistory, TrainedModel, TrainingFinding
from gradscope.records.transformer import PROBES, TransformerSeries

_Series = TypeVar("_Series", LayerSeries, TransformerSeries)


def called(model: TrainedModel) -> str:
    """Return a model's name: its variable, else its class."""
    return model.name or model.type


def below(model: str | None, name: str) -> str:
    """Join names: ``netD`` and ``conv1`` give ``netD.conv1``."""
    return ".".join(part for part in (model, name) if part)


def qualified(history: RunHistory) -> RunHistory:
    """Return the history with the model's name before each layer's, if there are several models."""
    findings = tuple(map(_of_run, history.findings))
    if len(history.models) < 2:
        return replace(history, findings=findings)
    names = {model.id: called(model) for model in history.models}

    def full(series: _Series) -> _Series:
        return replace(series, name=below(names.get(series.model), series.name))

    series: dict[str, Any] = {
        kind: tuple(map(full, getattr(history, kind))) for kind in ("parameters", "calls", *PROBES)
    }
    named = tuple(_finding(one, names) for one in findings)
    return replace(history, **series, findings=named)


def _of_run(found: TrainingFinding) -> TrainingFinding:
    """Return True if a finding names no model and no layer, so it concerns the run."""
    if found.model is not None or found.finding.name:
        return found
    return replace(found, finding=replace(found.finding, name=RUN))


def _finding(found: TrainingFinding, names: dict[int, str]) -> TrainingFinding:
    if found.parameters is not None:
        full = tuple((one, below(names.get(one), name)) for one, name in found.parameters)
        found = replace(found, parameters=full)
    if found.model not in names:
        return found
    finding = found.finding
    name = below(names[found.model], finding.name)
    advice = finding.advice
    if finding.name:
        advice = advice.replace(f"`{finding.name}`", f"`{name}`")
    return replace(found, finding=replace(finding, name=name, advice=advice))


def selected(
    history: RunHistory, patterns: Sequence[str], exclude: Sequence[str] = ()
) -> RunHistory:
    """Return the history of these layers alone: their parameters, calls and findings.

    A parameter is selected by its own name or by its module's, and both also with the model's name
    before it.

    Raises:
        LayerError: a pattern that matches nothing.
    """
    if not patterns and not exclude:
        return history
    models = {model.id: called(model) for model in history.models}
    everything = (*history.parameters, *history.calls)
    named = [
        _named(one.name, models.get(one.model), parameter=one.call is None, types=one.types)
        for one in everything
    ]
    kept = _kept(named, patterns, exclude)
    wanted = {id(one) for one, name in zip(everything, named, strict=True) if id(name) in kept}
    names = {(one.model, one.name) for one in everything if id(one) in wanted}
    parts: dict[str, Any] = {
        kind: tuple(one for one in getattr(history, kind) if (one.model, one.name) in names)
        for kind in PROBES
    }
    return replace(
        history,
        parameters=tuple(one for one in history.parameters if id(one) in wanted),
        calls=tuple(one for one in history.calls if id(one) in wanted),
        **parts,
        findings=tuple(
            found for found in history.findings if (found.model, found.finding.name) in names
        ),
    )


def selected_reports(
    reports: Sequence[tuple[TrainedModel, Report]],
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
) -> list[tuple[TrainedModel, Report]]:
    """Return the reports of one step with these layers alone; a model without any is left out.

    Raises:
        LayerError: a pattern that matches nothing.
    """
    if not patterns and not exclude:
        return list(reports)
    rows: list[tuple[int, bool, int, Named]] = []
    for i, (model, report) in enumerate(reports):
        kinds = {module.name: module.kinds for module in report.modules}
        name = called(model)
        for j, call in enumerate(report.calls):
            types = (call.type, *kinds.get(call.name, ()))
            rows.append((i, False, j, _named(call.name, name, parameter=False, types=types)))
        for j, one in enumerate(report.parameters):
            types = kinds.get(one.name.rpartition(".")[0], ())
            rows.append((i, True, j, _named(one.name, name, parameter=True, types=types)))
    kept = _kept([named for *_, named in rows], patterns, exclude)
    wanted = {(i, parameter, j) for i, parameter, j, named in rows if id(named) in kept}
    found = []
    for i, (model, report) in enumerate(reports):
        calls = tuple(c for j, c in enumerate(report.calls) if (i, False, j) in wanted)
        parameters = tuple(p for j, p in enumerate(report.parameters) if (i, True, j) in wanted)
        if calls or parameters:
            names = {call.name for call in calls}
            parts: dict[str, Any] = {
                kind: tuple(one for one in getattr(report, kind) if one.name in names)
                for kind in PROBES
            }
            found.append((model, replace(report, calls=calls, parameters=parameters, **parts)))
    return found


def _named(name: str, model: str | None, *, parameter: bool, types: Iterable[str]) -> Named:
    own = [name, name.rpartition(".")[0]] if parameter else [name]
    full = [below(model, one) for one in own]
    return Named(name, tuple(dict.fromkeys((*own[1:], *full))), tuple(types))


def _kept(named: Sequence[Named], patterns: Sequence[str], exclude: Sequence[str]) -> set[int]:
    """Return the identities of the names that the patterns select."""
    kept = matching(patterns or ("**",), named)
    if exclude:
        kept = matching(("**", *(f"!{pattern}" for pattern in exclude)), kept)
    return {id(one) for one in kept}
