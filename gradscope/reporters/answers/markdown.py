"""Answers as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.answers import WhyReport
from gradscope.reporters.answers._lines import alike, answer_lines, conclusion, facts
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import notes
from gradscope.reporters.markdown_blocks import line_items, prose
from gradscope.reporters.markdown_text import escaped, fenced
from gradscope.reporters.text_view import TextView

suffix = ".md"


def render(report: WhyReport, view: TextView) -> str:
    """A list item for each cause, without a width."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: WhyReport) -> Iterator[str]:
    name, *further = facts(report)
    yield f"## why: {escaped(name)}"
    yield "\n".join(f"- {escaped(fact)}" for fact in (" · ".join(further), *notes(report.run)))
    if report.error is not None:
        yield "### Error\n\n" + fenced(map(str, error_lines(report.error)))
    answers = [line_items(answer_lines(group)) for group in alike(report)]
    if answers:
        yield "\n".join(answers)
    yield from map(prose, conclusion(report))
