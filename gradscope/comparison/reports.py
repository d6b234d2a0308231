"""Two saved reports → a comparison: from their sketches, else from their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.comparison.alignment import CallKey
from gradscope.comparison.estimated_differences import SKETCH_FACTOR
from gradscope.comparison.first_divergence import findings
from gradscope.comparison.saved_report import SavedRun, TensorKey
from gradscope.comparison.tensor_differences import SavedPair
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import Report


def compare_reports(
    a: Report,
    b: Report,
    match: Sequence[str] = (),
    *,
    files: tuple[str, str] = ("A", "B"),
) -> DiffReport:
    """The errors of two saved runs, and their first divergence.

    Args:
        a: what is compared with; neither can be run again.
        b: what is compared with it.
        match: ``A=B``, patterns of module names that differ in B.
        files: where they were read.

    Raises:
        OptionError: one is of a run that failed, or they have nothing in common.
        ConfigError: a sketch is damaged.
    """
    notices = []
    if _share(a) != _share(b):
        notices.append("calls: not compared: with several processes they are of one rank")
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
    """What the calls of a report are a part of; None if they are complete."""
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
