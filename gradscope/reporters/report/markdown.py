"""A report as GitHub Markdown: the terminal's tables, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.graph import Chain
from gradscope.records.report import CheckReport, Report
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import notes
from gradscope.reporters.markdown_blocks import found_items, table_block
from gradscope.reporters.markdown_text import escaped, fenced
from gradscope.reporters.report import _chains, _checked, _histograms, _precision, _summary
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import derive
from gradscope.reporters.report.tables.accumulation import accumulation, verdict
from gradscope.reporters.report.tables.gradchecks import gradient_checks
from gradscope.reporters.report.tables.interventions import interventions
from gradscope.reporters.report.tables.tasks import tasks

suffix = ".md"


def render(report: Report, view: View) -> str:
    """Every table at its full width."""
    return "\n\n".join(_blocks(report, view)) + "\n"


def render_check(check: CheckReport, view: View) -> str:
    """The sum first, then each model: a comment on a pull request."""
    return "\n\n".join(_verdicts(check, view)) + "\n"


def _blocks(report: Report, view: View) -> Iterator[str]:
    first, *further = _summary.facts(report)
    yield f"## {escaped(first[0])}"
    facts = [" · ".join(first[1:]), *(" · ".join(line) for line in further), *notes(report.run)]
    yield "\n".join(f"- {escaped(fact)}" for fact in facts)
    if report.error:
        yield "### Error\n\n" + fenced(map(str, error_lines(report.error)))
    if view.table in (None, "calls"):
        yield (
            table_block(derive.calls(report, view)) if report.calls else "No calls were recorded."
        )
    if view.table in (None, "parameters"):
        owned = derive.parameters(report, view)
        if owned.rows:
            yield table_block(owned)
    if view.table is None:
        steps = derive.history(report)
        if steps:
            yield table_block(steps)
        for made in (interventions, accumulation, tasks, gradient_checks):
            table = made(report, view)
            if table is not None:
                yield table_block(table)
    for table in _histograms.tables(report.histograms):
        yield table_block(table)
    for chain in report.chains:  # somebody asked for each of them
        yield f"### C{escaped(_chains.title(chain))[1:]}\n\n{fenced(_chain(chain))}"
    yield escaped(" · ".join(_summary.totals(report)))
    for proof in (_summary.verified(report), verdict(report)):
        if proof:
            yield f"**{escaped(proof.lead)}** {escaped(proof.text)}"
    if report.findings:
        yield "### Findings\n\n" + "\n".join(found_items(report.findings))


def _verdicts(check: CheckReport, view: View) -> Iterator[str]:
    yield "## gradscope check"
    yield escaped(_checked.summary(check))
    for model in check.models:
        verdict = _checked.verdict(model)
        yield f"### {escaped(verdict.lead)} {escaped(verdict.text)}"
        if _checked.notes(model):
            yield "\n".join(f"- {escaped(note)}" for note in _checked.notes(model))
        if model.error is not None:
            yield fenced(map(str, error_lines(model.error)))
        if model.findings:
            yield "\n".join(found_items(model.findings))
        for table in _precision.tables(model.precision, view.top):
            if table.rows:
                yield table_block(table).replace("### ", "#### ", 1)
            else:
                caption = " · ".join((table.caption, *table.legend))
                yield f"#### {table.title.capitalize()} ({escaped(caption)})"
        if model.precision:
            yield "\n\n".join(map(escaped, _precision.LEGEND))
    yield from map(escaped, _checked.stale(check))


def _chain(chain: Chain) -> Iterator[str]:
    lines = _chains.lines(chain)
    yield from _chains.unbroken(lines)
    yield from _chains.legend(lines)
