"""A comparison as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.diff import DiffReport
from gradscope.reporters.diff import _lines, _tables
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.markdown_blocks import found_items, table_block
from gradscope.reporters.markdown_text import escaped

suffix = ".md"


def render(report: DiffReport, view: DiffView) -> str:
    """Every table at its full width."""
    return "\n\n".join(_blocks(report, view)) + "\n"


def _blocks(report: DiffReport, view: DiffView) -> Iterator[str]:
    yield "## gradscope diff"
    facts = [" · ".join(line) for line in _lines.facts(report)]
    yield "\n".join(f"- {escaped(fact)}" for fact in (*facts, *_lines.notes(report)))
    verdict = list(_lines.verdict(report))
    yield "\n".join(f"- **{escaped(line.lead)}** {escaped(line.text)}" for line in verdict)
    if report.findings:
        yield "\n".join(found_items(report.findings))
    for table in _tables.shown(report, view):
        yield table_block(table)
    if view.table != "findings":
        yield "\n\n".join(escaped(remark) for remark in _tables.legend(report))
