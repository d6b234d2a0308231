"""A comparison of two runs: the verdict, findings, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.pages import Part
from gradscope.plugins import Format
from gradscope.records.diff import DiffReport, TensorDiff
from gradscope.records.report import CheckedModel, CheckReport, Finding
from gradscope.records.run import RunInfo
from gradscope.reporters.annotations import of_checks
from gradscope.reporters.diff_tables import csv, legend, shown
from gradscope.reporters.document import Block, Document, Found, Remarks, Said
from gradscope.reporters.formats import formats
from gradscope.reporters.header import label, loss_facts, run_facts
from gradscope.reporters.views import DiffView
from gradscope.rules import COMPARISONS
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import number, plural
from gradscope.typeset.text import plain

#: How the noise was measured, with which errors are compared.
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


def notes(report: DiffReport) -> list[str]:
    """Settings of both runs, and inferred ones of either."""
    shared = dict.fromkeys((*report.notices, *report.a.notices, *report.b.notices))
    return [f"note: {plain(notice)}" for notice in shared]


def verdict(report: DiffReport) -> Iterator[Line]:
    """Yield whether B diverges from A, in forward and in backward, and by how much."""
    codes = {finding.code: finding for finding in report.findings}
    activations = [row.activation for row in report.calls]
    # Of other samples the gradients of calls alone are compared.
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
        Said(tuple(verdict(report)), "verdict", listed=True),
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
    given = (facts(report), notes(report), blocks, report.versions)
    return Document("diff", *given, title=title, heading="gradscope diff")


def _as_check(report: DiffReport) -> CheckReport:
    """Return findings as a check of B, for formats that hold findings only."""
    model = CheckedModel(status=report.status, run=report.b, findings=report.findings)
    rules = tuple(rule.code for rule in COMPARISONS)
    return CheckReport(status=report.status, versions=report.versions, rules=rules, models=(model,))


FORMATS = {**formats(document), "csv": Format(".csv", csv), **of_checks(_as_check)}
