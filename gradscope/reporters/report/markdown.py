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
from gradscope.reporters.report.tables.accumulation import verdict
from gradscope.reporters.report.tables.table_order import NO_CALLS, lacks_calls, tables

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
    if lacks_calls(report, view):
        yield f"{NO_CALLS.capitalize()}."
    yield from map(table_block, (*tables(report, view), *_histograms.tables(report.histograms)))
    for chain in report.chains:  # each was requested
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
