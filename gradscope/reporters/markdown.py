"""A document as GitHub Markdown, which also reads well unrendered: for an issue, a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord
from gradscope.reporters import finding_lines
from gradscope.reporters.document import (
    Block,
    Document,
    Drawn,
    Entries,
    Found,
    Nothing,
    Remarks,
    Said,
)
from gradscope.reporters.finding_lines import Known, error_lines, nothing
from gradscope.typeset.console import Line
from gradscope.typeset.tables import Table
from gradscope.typeset.text import plain


def markdown(document: Document) -> str:
    """Write the document, with every table at its full width."""
    title, facts = document.untitled
    lines = [escaped(" · ".join(line)) for line in facts]
    if document.end is not None:
        lines.insert(0, prose(document.end))
    blocks = [
        f"## {escaped(document.heading or title)}",
        bullets([*lines, *map(escaped, document.notes)]),
    ]
    blocks += [text for block in document.blocks for text in _blocks(block)]
    return "\n\n".join(blocks) + "\n"


def _blocks(block: Block) -> Iterator[str]:
    match block:
        case ErrorRecord():
            yield f"### Error\n\n{error_block(block)}"
        case Table():
            yield table_block(block)
        case Found() if block.findings:
            title = f"### {block.part.capitalize()}\n\n" if block.titled else ""
            yield title + "\n".join(found_items(block.findings, block.known))
        case Said():
            if block.facts:
                yield escaped(" · ".join(block.facts))
            title = f"### {block.part.capitalize()}\n\n" if block.titled else ""
            if block.listed:
                yield title + line_items(block.lines)
            else:
                yield from map(prose, block.lines)
        case Entries() if block.entries:
            yield "\n".join(line_items(entry.lines) for entry in block.entries)
        case Nothing():
            yield f"{block.text.capitalize()}."
            if block.reasons:
                yield bullets(map(escaped, block.reasons))
        case Remarks():
            yield "\n\n".join(map(escaped, block.texts))
        case Drawn() if block.title:
            title = escaped(block.title)
            rows = fenced([*block.rows, *block.remarks])
            yield f"### {title[:1].upper()}{title[1:]}\n\n{rows}"


def bullets(lines: Iterable[str]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


def error_block(error: ErrorRecord) -> str:
    """Return all facts of an error."""
    return fenced(map(str, error_lines(error)))


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
    """Return a line's lead and its text."""
    text = sentence(line.text)
    return f"**{escaped(line.lead)}** {text}" if line.lead else text


def found_items(findings: Sequence[Finding], known: Known = nothing) -> Iterator[str]:
    """Yield the lines of a list of findings; similar ones are one item."""
    for group in finding_lines.grouped(findings, known):
        _, *details = finding_lines.lines(group, known)
        lead = finding_lines.lead(group.first, known)
        place, message = (
            code(finding_lines.place(group.first)),
            sentence(plain(group.first.message)),
        )
        yield f"- **{escaped(lead)}** {place}: {message}"
        yield from (f"  - {sentence(str(replace(line, indent=0)))}" for line in details)


def escaped(text: str) -> str:
    """Escape plain text, also for a table."""
    text = re.sub(r"[\\`*<>|~&$]|(?<!\w)_|_(?!\w)|#(?=\w)", r"\\\g<0>", text)
    # Brackets make a link only where something follows them: shapes stay as they are.
    return re.sub(r"[\[\]]", r"\\\g<0>", text) if re.search(r"\][(\[:]", text) else text


def sentence(text: str) -> str:
    """Escape prose; its code spans stay as they are."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if i % 2 else escaped(part) for i, part in enumerate(parts))


def code(text: str) -> str:
    """Return a code span; ``|`` is escaped, because a table would read it as a border."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    # A code span drops plain spaces at its ends: the indent of a further tensor's row must stay.
    kept = re.sub(r"^ +", lambda m: "\u00a0" * len(m[0]), text)
    return f"{ticks}{space}{kept}{space}{ticks}".replace("|", "\\|")


def fenced(lines: Iterable[str]) -> str:
    """A block of code whose fence is longer than any in it."""
    body = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}text\n{body}\n{fence}"
