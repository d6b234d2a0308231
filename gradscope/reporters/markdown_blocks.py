"""Tables and findings as GitHub Markdown, for every record that has some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradscope.records.report import Finding
from gradscope.reporters import finding_lines
from gradscope.reporters.finding_lines import Known, nothing
from gradscope.reporters.markdown_text import code, escaped, sentence
from gradscope.typeset.console import Line
from gradscope.typeset.tables import Table
from gradscope.typeset.text import plain


def table_block(table: Table) -> str:
    """A table under its title, at its full width, with its legend below."""
    lines = [
        "| " + " | ".join(escaped(c.key) for c in table.columns) + " |",
        "| " + " | ".join("---:" if c.right else "---" for c in table.columns) + " |",
    ]
    for row in table.rows:
        cells = (
            code(cell.text) if column.wraps and cell.text else escaped(cell.text)
            for column, cell in zip(table.columns, row, strict=True)
        )
        lines.append("| " + " | ".join(cells) + " |")
    caption = f" ({escaped(table.caption)})" if table.caption else ""
    legend = "".join(f"\n\n{escaped(remark)}" for remark in table.legend)
    return f"### {table.title.capitalize()}{caption}\n\n" + "\n".join(lines) + legend


def line_items(lines: Iterable[Line]) -> str:
    """Lines as a list, each at its depth."""
    return "\n".join(f"{'  ' * line.indent}- {prose(line)}" for line in lines)


def prose(line: Line) -> str:
    """A line's lead and its text."""
    text = sentence(line.text)
    return f"**{escaped(line.lead)}** {text}" if line.lead else text


def found_items(findings: Sequence[Finding], known: Known = nothing) -> Iterator[str]:
    """The lines of a list of findings, those alike as one item."""
    for group in finding_lines.grouped(findings, known):
        _, *details = finding_lines.lines(group, known)
        lead = finding_lines.lead(group.first, known)
        place, message = (
            code(finding_lines.place(group.first)),
            sentence(plain(group.first.message)),
        )
        yield f"- **{escaped(lead)}** {place}: {message}"
        yield from (f"  - {sentence(str(replace(line, indent=0)))}" for line in details)
