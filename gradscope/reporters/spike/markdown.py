"""A spike as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.spike import SpikeReport
from gradscope.reporters.markdown_blocks import line_items, prose, table_block
from gradscope.reporters.markdown_text import escaped
from gradscope.reporters.spike._parts import end, tables, title, verdict
from gradscope.reporters.text_view import TextView

suffix = ".md"


def render(report: SpikeReport, view: TextView) -> str:
    """The same blocks as in a terminal, without a width."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: SpikeReport) -> Iterator[str]:
    yield f"## spike: {escaped(' · '.join(title(report)))}"
    yield line_items(verdict(report))
    yield from map(table_block, tables(report))
    yield from map(prose, end(report))
