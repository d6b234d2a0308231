"""Leaks as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.leaks import LeaksReport
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.leaks._lines import axis_lines, conclusion, in_order
from gradscope.reporters.markdown_blocks import line_items, prose
from gradscope.reporters.markdown_text import escaped, fenced
from gradscope.reporters.text_view import TextView

suffix = ".md"


def render(report: LeaksReport, view: TextView) -> str:
    """A list item for each axis, without a width."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: LeaksReport) -> Iterator[str]:
    name, *further = run_facts(report.run)
    yield f"## leaks: {escaped(name)}"
    yield "\n".join(f"- {escaped(fact)}" for fact in (" · ".join(further), *notes(report.run)))
    if report.error is not None:
        yield "### Error\n\n" + fenced(map(str, error_lines(report.error)))
    found = [line_items(axis_lines(one)) for one in in_order(report)]
    if found:
        yield "\n".join(found)
    yield from map(prose, conclusion(report))
