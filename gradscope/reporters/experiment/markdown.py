"""An experiment as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.experiment import ExperimentReport
from gradscope.reporters.experiment._lines import facts, notes, table, verdict
from gradscope.reporters.markdown_blocks import found_items, line_items, table_block
from gradscope.reporters.markdown_text import escaped
from gradscope.reporters.text_view import TextView

suffix = ".md"


def render(report: ExperimentReport, view: TextView) -> str:
    """The verdict as a list, and the arms at their full width."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: ExperimentReport) -> Iterator[str]:
    name, *further = facts(report)
    yield f"## experiment: {escaped(name)}"
    yield "\n".join(f"- {escaped(fact)}" for fact in (" · ".join(further), *notes(report)))
    yield line_items(verdict(report))
    if report.findings:
        yield "\n".join(found_items(report.findings))
    arms = table(report)
    if arms is not None:
        yield table_block(arms)
