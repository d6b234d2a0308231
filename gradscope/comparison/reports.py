"""Compares two saved reports, by sketches or statistics.

The models of two training runs are compared in the same way, in each step that both sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.comparison.alignment import CallKey
from gradscope.comparison.estimated_differences import SKETCH_FACTOR
from gradscope.comparison.first_divergence import findings
from gradscope.comparison.saved_pair import SavedPair, SavedRun, TensorKey
from gradscope.errors import OptionError
from gradscope.patterns import Named, matching
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import Report
from gradscope.runfile.reader import RunFile


def compare_reports(
    a: Report,
    b: Report,
    match: Sequence[str] = (),
    *,
    files: tuple[str, str] = ("A", "B"),
) -> DiffReport:
    """Return the errors of two saved runs, and their first divergence.

    Args:
        a: the reference.
        b: the report to compare with it.
        match: ``A=B``, patterns of module names that differ in B.
        files: their paths.

    Raises:
        OptionError: a run failed, or they have nothing in common.
        ConfigError: a sketch is damaged.
    """
    notices = []
    if _share(a) != _share(b):
        notices.append("calls are not compared: with several processes they belong to one rank")
        a, b = replace(a, calls=()), replace(b, calls=())
    pair = SavedPair.of(SavedRun.of(a, files[0]), SavedRun.of(b, files[1]), match)
    report = DiffReport(
        status="ok",
        a=replace(a.run, file=files[0]),
        b=replace(b.run, file=files[1]),
        versions=b.versions,
        notices=(*notices, *_notices(pair)),
        losses=(a.loss, b.loss),
        step=pair.accuracy.step if pair.sketched else pair.accuracy.half,
        factor=SKETCH_FACTOR if pair.sketched else 1.0,
        measured="sketches" if pair.sketched else "statistics",
        calls=tuple(_call_diffs(pair)),
        parameters=tuple(_parameter_diffs(pair)),
        only_a=(*_alone(pair.a, {*pair.calls}), *_missing(pair.a, {*pair.parameters})),
        only_b=(
            *_alone(pair.b, {*pair.calls.values()}),
            *_missing(pair.b, {*pair.parameters.values()}),
        ),
    )
    found = tuple(findings(pair, report))
    return replace(report, findings=found, status="findings" if found else "ok")


def _share(report: Report) -> tuple[object, ...] | None:
    """Return the process whose part the report holds; None for a full report."""
    run = report.parallel
    return None if run is None else (run.kind, run.axes, run.rank)


def _notices(pair: SavedPair) -> Iterator[str]:
    if pair.reordered:
        yield "batch: the same numbers in another order: only norms, means and ranges are compared"
    elif not pair.sketched:
        without = [one.file for one in (pair.a, pair.b) if not one.sketches]
        yield (
            f"{' and '.join(without)}: without sketches: only norms, means and ranges are compared"
        )
    ours, theirs = pair.a.report.versions, pair.b.report.versions
    for name, version in ours.items():
        if theirs.get(name) != version:
            yield f"{name}: {version} in A, {theirs.get(name, 'none')} in B"


def _call_diffs(pair: SavedPair) -> Iterator[CallDiff]:
    for call in pair.a.report.calls:
        key = call.name, call.call
        other = pair.calls.get(key)
        if other is None:
            continue
        for tensor in call.outputs:
            activation = pair.diff(TensorKey(key, "output", tensor.path))
            yield CallDiff(
                name=call.name,
                type=call.type,
                call=call.call,
                path=tensor.path,
                shape=tensor.activation.shape,
                activation=activation or TensorDiff(note="not compared"),
                gradient=pair.diff(TensorKey(key, "grad_output", tensor.path)),
                name_b=None if other[0] == call.name else other[0],
            )


def _parameter_diffs(pair: SavedPair) -> Iterator[ParameterDiff]:
    updates = {p.name: p.update_ratio for p in pair.b.report.parameters}
    for parameter in pair.a.report.parameters:
        other = pair.parameters.get(parameter.name)
        if other is not None:
            value = pair.diff(TensorKey(None, "value", parameter.name))
            a, b = parameter.update_ratio, updates[other]
            yield ParameterDiff(
                name=parameter.name,
                shape=parameter.shape,
                value=value or TensorDiff(note="not compared"),
                gradient=pair.diff(TensorKey(None, "gradient", parameter.name)),
                name_b=None if other == parameter.name else other,
                update_ratios=None if a is None or b is None else (a, b),
            )


def _alone(run: SavedRun, known: set[CallKey]) -> list[str]:
    alone = (name for name, call in run.alike if (name, call) not in known)
    return list(dict.fromkeys(name or "the model" for name in alone))


def _missing(run: SavedRun, known: set[str]) -> list[str]:
    return [p.name for p in run.report.parameters if p.name not in known]


def of_layers(report: DiffReport, layers: Sequence[str], exclude: Sequence[str]) -> DiffReport:
    """Return the report with the rows of some layers only.

    Its findings stay, because they are about the full models.

    Args:
        report: the report of full models.
        layers: patterns of A's module names; empty: all.
        exclude: patterns to take out.

    Raises:
        LayerError: a pattern matches no compared layer.
    """
    if not layers and not exclude:
        return report
    types = {_module(parameter.name): "" for parameter in report.parameters}
    types |= {call.name: call.type for call in report.calls}
    names = [Named(name, types=(kind,)) for name, kind in types.items()]
    patterns = (*(layers or ("**",)), *(f"!{pattern}" for pattern in exclude))
    chosen = {named.name for named in matching(patterns, names)}
    return replace(
        report,
        calls=tuple(call for call in report.calls if call.name in chosen),
        parameters=tuple(p for p in report.parameters if _module(p.name) in chosen),
    )


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model in one step of both runs.

    Attributes:
        model: its name, if there are several.
        alone: the models of A or B without a counterpart.
    """

    step: int
    model: str
    report: DiffReport
    alone: Sequence[str]

    @property
    def diverges(self) -> bool:
        return bool(self.report.findings) or worst_update(self.report) is not None

    @property
    def where(self) -> str:
        return f"step {self.step}" + (f" of {self.model}" if self.model else "")


def compare_models(
    sampled: Sequence[int], a: RunFile, b: RunFile, match: Sequence[str]
) -> ComparedModel | None:
    """Return the first divergent model, in the first step with one; else a model of the last step.

    Raises:
        OptionError: no model can be compared in any step.
    """
    pairs = _pairs([model.name for model in a.models], [model.name for model in b.models])
    several = len(a.models) > 1 or len(b.models) > 1
    alone = dict.fromkeys(model.name for model in a.models if model.name not in pairs)
    alone |= dict.fromkeys(model.name for model in b.models if model.name not in pairs.values())
    last: ComparedModel | None = None
    failure: OptionError | None = None
    for step in sampled:
        ours, theirs = _reports(a, step), _reports(b, step)
        for name, other in pairs.items():
            if name not in ours or other not in theirs:
                continue
            try:
                report = compare_reports(
                    *(ours[name], theirs[other], match), files=(str(a.path), str(b.path))
                )
            except OptionError as error:  # nothing in common
                failure, alone[name] = failure or error, None
                continue
            found = ComparedModel(step, name if several else "", report, tuple(alone))
            if found.diverges:
                return found
            last = found if last is None or last.step < step else last
    if last is None and failure is not None:
        raise failure
    return None if last is None else replace(last, alone=tuple(alone))


def _pairs(a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Pair models by name; others by their order."""
    others = (name for name in b if name not in a)
    pairs = {name: name if name in b else next(others, None) for name in a}
    return {name: other for name, other in pairs.items() if other is not None}


def _reports(run: RunFile, step: int) -> dict[str, Report]:
    """Return the report of each model in a step, by the model's name."""
    names = {model.id: model.name for model in run.models}
    return {
        names[one.model]: replace(one.report, status="ok")
        for one in run.sample(step)
        if one.model in names
    }


def worst_update(report: DiffReport) -> ParameterDiff | None:
    """Return the parameter whose updates differ most although its gradients are equal."""
    differing = [
        one
        for one in report.parameters
        if one.gradient is not None
        and one.gradient.note is None
        and not one.gradient.diverges
        and update_error(one) > report.step
    ]
    return max(differing, key=update_error) if differing else None


def update_error(parameter: ParameterDiff) -> float:
    """Return |b − a| / a of the update ratios."""
    a, b = parameter.update_ratios or (0.0, 0.0)
    return abs(b - a) / a if a else math.inf if b else 0.0
