"""Names over several models, ``netD.conv1``, and the layers that patterns select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradscope.patterns import Named, matching
from gradscope.records.history import LayerSeries, RunHistory
from gradscope.records.training import TrainingFinding

#: What a finding is of that names no layer, such as one of the loss.
RUN = "(run)"


def qualified(history: RunHistory) -> RunHistory:
    """The history with the model's name before each layer's, where there are several models."""
    findings = tuple(map(_of_run, history.findings))
    if len(history.models) < 2:
        return replace(history, findings=findings)
    names = {model.id: model.name or model.type for model in history.models}
    return replace(
        history,
        parameters=tuple(_series(one, names) for one in history.parameters),
        calls=tuple(_series(one, names) for one in history.calls),
        findings=tuple(_finding(one, names) for one in findings),
    )


def below(model: str | None, name: str) -> str:
    """``netD`` and ``conv1`` as ``netD.conv1``."""
    return ".".join(part for part in (model, name) if part)


def _of_run(found: TrainingFinding) -> TrainingFinding:
    """A finding of no model and no layer is of the run."""
    if found.model is not None or found.finding.name:
        return found
    return replace(found, finding=replace(found.finding, name=RUN))


def _series(series: LayerSeries, names: dict[int, str]) -> LayerSeries:
    return replace(series, name=below(names.get(series.model), series.name))


def _finding(found: TrainingFinding, names: dict[int, str]) -> TrainingFinding:
    if found.model not in names:
        return found
    finding = found.finding
    name = below(names[found.model], finding.name)
    advice = finding.advice.replace(f"`{finding.name}`", f"`{name}`") if finding.name else ""
    return replace(found, finding=replace(finding, name=name, advice=advice or finding.advice))


def selected(
    history: RunHistory, patterns: Sequence[str], exclude: Sequence[str] = ()
) -> RunHistory:
    """The history of those layers alone: their parameters, calls and findings.

    A parameter is selected by its own name or by its module's, and both also with the model's name
    before it.

    Raises:
        LayerError: a pattern that matches nothing.
    """
    if not patterns and not exclude:
        return history
    models = {model.id: model.name or model.type for model in history.models}
    series = (*history.parameters, *history.calls)
    named = {(one.model, one.name, one.call): _named(one, models) for one in series}
    kept = matching(patterns or ("**",), named.values())
    if exclude:
        kept = matching(("**", *(f"!{pattern}" for pattern in exclude)), kept)
    wanted = {id(one) for one in kept}

    def keeps(one: LayerSeries) -> bool:
        return id(named[one.model, one.name, one.call]) in wanted

    names = {(one.model, one.name) for one in series if keeps(one)}
    return replace(
        history,
        parameters=tuple(filter(keeps, history.parameters)),
        calls=tuple(filter(keeps, history.calls)),
        findings=tuple(
            found for found in history.findings if (found.model, found.finding.name) in names
        ),
    )


def _named(series: LayerSeries, models: dict[int, str]) -> Named:
    own = [series.name]
    if series.call is None:
        own.append(series.name.rpartition(".")[0])
    full = [below(models.get(series.model), name) for name in own]
    return Named(series.name, tuple(dict.fromkeys((*own[1:], *full))), series.types)
