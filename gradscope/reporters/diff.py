"""A comparison of two runs: the verdict, findings, then the tables; and their rows for CSV, one for
each output of a call and for each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

from gradscope.pages import Part
from gradscope.plugins import Format
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import CheckedModel, CheckReport, Finding
from gradscope.records.run import RunInfo
from gradscope.reporters.check import of_checks
from gradscope.reporters.document import Block, Document, Found, Prose, Remarks, formats
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.header import label, loss_facts, notes, run_facts
from gradscope.reporters.views import DiffView
from gradscope.rules import COMPARISONS
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, shape
from gradscope.typeset.tables import KEEP, Cell, Heading, Table, of_columns
from gradscope.typeset.text import Field, csv_table, plain

_OF_ALL = "error: ‖b − a‖ / ‖a‖; cos: the cosine between the two"
_LEGENDS = {
    "runs": (
        f"{_OF_ALL}; max: the largest difference",
        "forced: the teacher-forced error, of the call fed with A's tensors; ×n: n times the noise",
    ),
    "outputs": (f"{_OF_ALL}; max: the largest difference; ×n: n times the noise",),
    "sketches": (f"{_OF_ALL}; estimates, ± 6 %; ×n: n times the noise",),
    "statistics": (
        "error, max: lower bounds of ‖b − a‖ / ‖a‖ and of the largest difference; ×n: n times √ε",
    ),
}
_Column = tuple[Heading, Sequence[str | Cell]]
_Row = TypeVar("_Row", CallDiff, ParameterDiff)


def shown(report: DiffReport, view: DiffView) -> list[Table]:
    """Return the requested tables that have rows."""
    made = [build(report, view) for name, build in _TABLES if view.table in (None, name)]
    return [table for table in made if table.rows]


def calls(report: DiffReport, view: DiffView) -> Table:
    """Return the table of calls: a row for each output, with its activation and its gradient."""
    rows, caption = _chosen(report.calls, view, lambda row: row.activation, "output")
    names = [label(row.name, row.call) for row in rows]
    paths = (f" {plain(row.path)}" if row.path else "" for row in rows)
    columns: list[_Column] = [
        (Heading("layer", False, wraps=True), [*map(str.__add__, names, paths)]),
        (Heading("in B", False, KEEP - 30, wraps=True), [plain(row.name_b or "") for row in rows]),
        (Heading("type", False, KEEP - 60), [plain(row.type) for row in rows]),
        (Heading("shape", False, KEEP - 70), [shape(row.shape) for row in rows]),
        *_columns("out", 0, [row.activation for row in rows]),
        *_columns("grad", 1, [row.gradient for row in rows]),
    ]
    return _known("calls", columns, caption, names)


def parameters(report: DiffReport, view: DiffView) -> Table:
    """Return the table of parameters: a row for each, with its value and its gradient."""
    rows, caption = _chosen(report.parameters, view, lambda row: row.value, "parameter")
    names = [plain(row.name) for row in rows]
    ratios = [row.update_ratios or (None, None) for row in rows]
    columns: list[_Column] = [
        (Heading("parameter", False, wraps=True), names),
        (Heading("in B", False, KEEP - 30, wraps=True), [plain(row.name_b or "") for row in rows]),
        (Heading("shape", False, KEEP - 70), [shape(row.shape) for row in rows]),
        (Heading("value error", keep=KEEP - 20), [_error(row.value) for row in rows]),
        *_columns("grad", 1, [row.gradient for row in rows]),
        (Heading("update A", keep=KEEP - 16), [_figure(ratio) for ratio, _ in ratios]),
        (Heading("update B", keep=KEEP - 16), [_figure(ratio) for _, ratio in ratios]),
    ]
    return _known("parameters", columns, caption, names)


def _known(title: str, columns: Sequence[_Column], caption: str, names: Sequence[str]) -> Table:
    """Return the table without columns that hold no value."""
    unknown = {"", NOT_THERE}
    kept = [
        (heading, cells)
        for heading, cells in columns
        if any((one if isinstance(one, str) else one.text) not in unknown for one in cells)
    ]
    return of_columns(title, kept, caption=caption, names=tuple(names))


def _chosen(
    rows: Sequence[_Row], view: DiffView, value: Callable[[_Row], TensorDiff], noun: str
) -> tuple[list[_Row], str]:
    """Return the rows to show: with ``top``, those whose value or gradient is farthest off."""
    if view.top is None or view.top >= len(rows):
        return list(rows), ""
    worst = sorted(rows, key=lambda row: max(map(_size, (value(row), row.gradient))), reverse=True)
    caption = f"{count(view.top)} of {plural(len(rows), noun)} shown, the largest errors"
    return worst[: view.top], caption


def _size(diff: TensorDiff | None) -> float:
    if diff is None:
        return 0.0
    return float("inf") if diff.note else diff.error or 0.0


def _columns(what: str, rank: int, diffs: Sequence[TensorDiff | None]) -> Iterator[_Column]:
    """Yield the compared columns of a tensor; an empty column is dropped later."""
    for key, keep, of in (
        ("error", 1, _error),
        ("cos", 40, _cosine),
        ("max", 50, lambda diff: _figure(diff.largest)),
        ("forced", 10, lambda d: _judged(d.teacher_forced, d.teacher_forced_noise, d.diverges)),
        ("A–ref", 15, lambda diff: _figure(diff.reference_a)),
        ("B–ref", 15, lambda diff: _figure(diff.reference_b)),
    ):
        heading = Heading(f"{what} {key}", keep=KEEP - keep - rank)
        yield heading, ["" if diff is None else of(diff) for diff in diffs]


def _cosine(diff: TensorDiff) -> str:
    return NOT_THERE if diff.cosine is None else f"{diff.cosine:.4f}"


def _error(diff: TensorDiff) -> Cell:
    if diff.note:
        return Cell(plain(diff.note), "warn")
    return _judged(diff.error, diff.noise, diff.diverges and diff.teacher_forced is None)


def _judged(error: float | None, noise: float | None, diverges: bool) -> Cell:
    """Return an error as text; if it exceeds the noise, also as a multiple of the noise."""
    if error is None or not noise or not diverges:
        return Cell(_figure(error), "bad" if diverges else "")
    return Cell(f"{_figure(error)} ×{number(error / noise)}", "bad")


def _figure(x: float | None) -> str:
    return NOT_THERE if x is None else "0" if x == 0 else f"{x:.1e}"


_TABLES = (("calls", calls), ("parameters", parameters))


def legend(report: DiffReport) -> tuple[str, ...]:
    """Return explanations of the columns."""
    nearer = f"A–ref, B–ref: the error of each from a run of A in {report.reference}"
    updates = "update A, update B: ‖Δw‖ / ‖w‖ of the optimizer's step"
    return (
        *_LEGENDS[report.measured],
        *([nearer] if report.reference else []),
        *([updates] if any(row.update_ratios for row in report.parameters) else []),
    )


_DIFF = tuple(f.name for f in fields(TensorDiff))
CALLS = (
    *("name", "name_b", "type", "call", "path", "shape"),
    *(f"activation_{name}" for name in _DIFF),
    *(f"gradient_{name}" for name in _DIFF),
)
PARAMETERS = (
    *("name", "name_b", "shape", "update_ratio_a", "update_ratio_b"),
    *(f"value_{name}" for name in _DIFF),
    *(f"gradient_{name}" for name in _DIFF),
)
FINDINGS = tuple(f.name for f in fields(Finding))


def csv(report: DiffReport, view: DiffView) -> str:
    """Write one table: the calls, unless the view asks for another."""
    if view.table == "findings":
        found = ordered(report.findings)
        return csv_table(FINDINGS, [[getattr(one, name) for name in FINDINGS] for one in found])
    if view.table == "parameters":
        return csv_table(PARAMETERS, parameter_rows(report))
    return csv_table(CALLS, call_rows(report))


def call_rows(report: DiffReport) -> list[list[Field]]:
    """Return the fields of calls, in the order of ``CALLS``."""
    return [_call(row) for row in report.calls]


def parameter_rows(report: DiffReport) -> list[list[Field]]:
    """Return the fields of parameters, in the order of ``PARAMETERS``."""
    return [_parameter(row) for row in report.parameters]


def _call(row: CallDiff) -> list[Field]:
    head: list[Field] = [row.name, row.name_b, row.type, row.call, row.path, shape(row.shape)]
    return [*head, *_diff(row.activation), *_diff(row.gradient)]


def _parameter(row: ParameterDiff) -> list[Field]:
    ratios = row.update_ratios or (None, None)
    head: list[Field] = [row.name, row.name_b, shape(row.shape), *ratios]
    return [*head, *_diff(row.value), *_diff(row.gradient)]


def _diff(diff: TensorDiff | None) -> list[Field]:
    return [None if diff is None else getattr(diff, name) for name in _DIFF]


#: How the noise was measured; errors are compared with it.
_NOISE = {
    "runs": "of A, with each number changed by {step:.1e}, relative; "
    "errors above {factor:g} times the noise count",
    "outputs": "of A, not compiled, with each number changed by {step:.1e}, relative; "
    "errors above {factor:g} times the noise count",
    "sketches": "of both runs, with each number changed by {step:.1e}, relative, when sketched; "
    "errors above {factor:g} times the noise count",
    "statistics": "unknown without sketches; errors above {step:.1e} count (√ε of the dtype)",
}


def facts(report: DiffReport) -> list[list[str]]:
    """Return a line for each of the two runs; the first fact is its title."""
    return [
        [f"{which}  {first}", *rest]
        for which, run, loss in zip("AB", (report.a, report.b), report.losses, strict=True)
        for first, *rest in [[*run_facts(run), *_loss(run, loss)]]
    ]


def _loss(run: RunInfo, loss: float | None) -> list[str]:
    value = f" = {number(loss)}" if loss is not None else ""
    return [f"{fact}{value}" for fact in loss_facts(run)]


def verdict(report: DiffReport) -> Iterator[Line]:
    """Yield whether B diverges from A, in forward and in backward, and by how much."""
    codes = {finding.code: finding for finding in report.findings}
    activations = [row.activation for row in report.calls]
    # If B has other samples, only the gradients of calls are compared.
    gradients = [
        [row.gradient for row in report.parameters],
        [row.gradient for row in report.calls],
    ]
    for way, code, errors in (
        ("forward", "GD101", _errors(activations)),
        ("backward", "GD102", _errors(gradients[0]) or _errors(gradients[1])),
    ):
        worst = max((error for error in errors if error is not None), default=None)
        off = "" if worst is None else f"; the largest error is {worst:.1e}"
        if code in codes:
            yield Line(f"diverges first in {_where(codes[code])}{off}", f"{way}:", "bad")
        elif way == "backward" and "GD101" in codes and report.measured != "runs":
            yield Line(f"diverges because forward does{off}", f"{way}:", "bad")
        elif errors:
            what = plural(len(errors), "output" if way == "forward" else "gradient")
            yield Line(f"no divergence: {what} compared{off}", f"{way}:", "good")
    if report.reference is not None:
        every = [p.gradient for p in report.parameters]
        yield Line(f"forward {_nearer(activations)}; backward {_nearer(every)}", "reference:")
    if report.step:
        yield Line(_NOISE[report.measured].format(step=report.step, factor=report.factor), "noise:")


def _nearer(diffs: Iterable[TensorDiff | None]) -> str:
    """Return the sentence on the run that is nearer to the reference, and in how many tensors."""
    pairs = [
        (diff.reference_a, diff.reference_b)
        for diff in diffs
        if diff is not None and diff.reference_a is not None and diff.reference_b is not None
    ]
    if not pairs:
        return "nothing to compare"
    nearer = sum(a < b for a, b in pairs), sum(b < a for a, b in pairs)
    worst = [max(one) for one in zip(*pairs, strict=True)]
    which = "AB"[nearer[1] > nearer[0]]
    return (
        f"{which} is closer in {max(nearer)} of {len(pairs)}; the largest error is "
        f"{worst[0]:.1e} in A and {worst[1]:.1e} in B"
    )


def _errors(diffs: Iterable[TensorDiff | None]) -> list[float | None]:
    """Return the errors of compared tensors."""
    return [diff.error for diff in diffs if diff is not None and diff.note is None]


def _where(finding: Finding) -> str:
    if finding.cause in ("loss", "batch"):
        return f"the {finding.cause}"
    return f"`{label(finding.name, finding.call)}`" if finding.name else "the model"


def document(report: DiffReport, view: DiffView, format: str) -> Document:
    """Return the document: the verdict with findings, curves over steps, the tables, and the
    terms.
    """
    blocks: list[Block] = [
        Prose(tuple(verdict(report)), "verdict", listed=True),
        Found(report.findings, part="verdict", titled=False),
    ]
    if view.panels and view.table is None:
        blocks.append(Part("over steps", "A and B, overlaid", panels=view.panels))
    if view.maps and view.table is None:
        blocks.append(Part("layers over steps", "A beside B, on one scale", maps=view.maps))
    blocks += shown(report, view)
    if view.table != "findings":
        blocks.append(Remarks(legend(report), "terms"))
    title = f"{plain(report.a.model)} against {plain(report.b.model)}"
    both = dict.fromkeys((*report.notices, *report.a.notices, *report.b.notices))
    given = (facts(report), notes(both), blocks, report.versions)
    return Document("diff", *given, title=title, heading="gradscope diff")


def _as_check(report: DiffReport) -> CheckReport:
    """Return findings as a check of B, for formats that hold findings only."""
    model = CheckedModel(status=report.status, run=report.b, findings=report.findings)
    rules = tuple(rule.code for rule in COMPARISONS)
    return CheckReport(status=report.status, versions=report.versions, rules=rules, models=(model,))


FORMATS = {**formats(document), "csv": Format(".csv", csv), **of_checks(_as_check)}
