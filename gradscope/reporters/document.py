"""A record as a document, once for all formats: tables, lines and findings; and its writers.

A record's file makes a ``Document`` of it. ``formats`` makes the formats of the record from that:
terminal, GitHub Markdown (which also reads well unrendered), a page for a browser, and JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from gradscope import pages
from gradscope.pages import Excerpt, Item, Page, Part, items, table_part
from gradscope.plugins import Format
from gradscope.records import json as record_json
from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord
from gradscope.reporters import finding_lines
from gradscope.reporters.finding_lines import Known, error_lines, every_line, nothing
from gradscope.reporters.header import fact_lines
from gradscope.typeset.console import Line, dimmed, paragraphs, printed, prose, stacked, table_lines
from gradscope.typeset.tables import Table
from gradscope.typeset.text import join, plain


@dataclass(frozen=True, slots=True)
class Found:
    """Findings, similar ones together; texts show a title if they are ``titled``."""

    findings: Sequence[Finding]
    known: Known = nothing
    part: str = "findings"
    titled: bool = True


@dataclass(frozen=True, slots=True)
class Prose:
    """Lines of prose, below ``facts`` that stand side by side; if ``listed``, Markdown makes a list
    of them."""

    lines: Sequence[Line]
    part: str
    titled: bool = False
    listed: bool = False
    facts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """Lines about one line of code; no empty line separates ``brief`` ones."""

    lines: Sequence[Line]
    location: str | None = None
    brief: bool = False


@dataclass(frozen=True, slots=True)
class Entries:
    """A list of entries; texts show the brief ones last."""

    entries: Sequence[Entry]
    part: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Missing part of a record, with the reason."""

    text: str
    part: str = "nothing"
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Remarks:
    """Sentences of less weight."""

    texts: Sequence[str]
    part: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """Text with a fixed layout; without a title, only the terminal shows it.

    ``rows`` are the text at any width, ``remarks`` are below it.
    """

    texts: Sequence[Text]
    title: str = ""
    rows: Sequence[str] = ()
    remarks: Sequence[str] = ()


#: A ``Part`` is for pages alone.
Block = ErrorRecord | Table | Found | Prose | Entries | Nothing | Remarks | Drawn | Part


@dataclass(frozen=True, slots=True)
class Document:
    """Document of a record, in order. ``part`` names the part of a page that a block joins.

    Attributes:
        kind: the command that makes it.
        facts: facts on the run, a list for each line; the first fact is the title.
        notes: inferred and adjusted settings.
        blocks: its content.
        versions: the versions of the libraries.
        title: the page's title, if it is not the first fact.
        heading: the heading in Markdown, if it is not the title.
        end: the end of the run.
    """

    kind: str
    facts: Sequence[Sequence[str]]
    notes: Sequence[str]
    blocks: Sequence[Block]
    versions: dict[str, str] = field(default_factory=dict)
    title: str = ""
    heading: str = ""
    end: Line | None = None

    @property
    def untitled(self) -> tuple[str, list[Sequence[str]]]:
        """Return the title, and the other facts."""
        if self.title:
            return self.title, list(self.facts)
        (title, *first), *further = self.facts
        return title, [first, *further]


def texts(document: Document, width: int | None) -> list[Text]:
    """Return the document's lines for a terminal; without a width nothing is hidden or broken."""
    blocks = (text for block in document.blocks for text in _texts(block, width))
    return stacked([header(document, width), *blocks])


def header(document: Document, width: int | None) -> Iterator[Text]:
    """Yield the lines on the run, its end, and the notes."""
    first, *others = document.facts
    yield from fact_lines([first], width)
    if document.end is not None:
        yield from prose(document.end, width)
    for facts in others:
        yield from map(Text, join(facts, width))
    for note in document.notes:
        yield from dimmed(note, width)


def _texts(block: Block, width: int | None) -> Iterator[Iterable[Text]]:
    """Yield a block as groups of lines, with an empty line between them."""
    match block:
        case ErrorRecord():
            yield paragraphs(error_lines(block), width)
        case Table():
            yield table_lines(block, width)
        case Found() if block.findings:
            title = [Text(block.part, "bold")] if block.titled else []
            yield [*title, *paragraphs(every_line(block.findings, block.known), width)]
        case Prose():
            title = [Text(block.part, "bold")] if block.titled else []
            facts = map(Text, join(block.facts, width)) if block.facts else ()
            yield [*title, *facts, *paragraphs(block.lines, width)]
        case Entries():
            yield from (paragraphs(e.lines, width) for e in block.entries if not e.brief)
            yield [t for e in block.entries if e.brief for t in paragraphs(e.lines, width)]
        case Nothing():
            yield [Text(block.text), *paragraphs(map(Line, block.reasons), width)]
        case Remarks():
            yield [line for text in block.texts for line in dimmed(text, width)]
        case Drawn():
            yield block.texts


def markdown(document: Document) -> str:
    """Write the document, with every table at its full width."""
    title, facts = document.untitled
    lines = [escaped(" · ".join(line)) for line in facts]
    if document.end is not None:
        lines.insert(0, line_text(document.end))
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
        case Prose():
            if block.facts:
                yield escaped(" · ".join(block.facts))
            title = f"### {block.part.capitalize()}\n\n" if block.titled else ""
            if block.listed:
                yield title + line_items(block.lines)
            else:
                yield from map(line_text, block.lines)
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
    """Return the lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


def error_block(error: ErrorRecord) -> str:
    """Return all facts of an error."""
    return fenced(map(str, error_lines(error)))


def table_block(table: Table) -> str:
    """Return a table under its title, at its full width, with its legend below."""
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
    """Return the lines as a list, each at its depth."""
    return "\n".join(f"{'  ' * line.indent}- {line_text(line)}" for line in lines)


def line_text(line: Line) -> str:
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
    """Return a block of code whose fence is longer than any fence in it."""
    body = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}text\n{body}\n{fence}"


#: Number of lines shown before and after the cited one, and the largest file that is read, in
#: bytes.
_AROUND, _LARGEST = 2, 1 << 20


def excerpt(location: str | None) -> Excerpt | None:
    """Return the code around a record's ``net.py:31``, if the file is available.

    Only Python files below the working directory count: a record may come from another person, and
    name any file of the reader.
    """
    file, _, number = (location or "").rpartition(":")
    if not file.endswith(".py") or not number.isdecimal():
        return None
    try:
        path, line = Path(file).resolve(), int(number)
        known = path.is_relative_to(Path.cwd()) and path.is_file()
        if not known or path.stat().st_size > _LARGEST:
            return None
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    first = max(1, line - _AROUND)
    if not 1 <= line <= len(lines):
        return None
    return Excerpt(first, tuple(lines[first - 1 : line + _AROUND]), line)


def finding_items(findings: Sequence[Finding], known: Known = nothing) -> tuple[Item, ...]:
    """Return the findings, similar ones as one; each has the rows that it concerns."""
    found = []
    for group in finding_lines.grouped(findings, known):
        first, *more = finding_lines.lines(group, known)
        names = tuple(finding_lines.place(one) for one in (group.first, *group.more))
        names = tuple(dict.fromkeys((*names, *known(group.first).names)))
        code = excerpt(group.first.location)
        found.append(Item(first.lead, first.text, first.tone, tuple(more), names, code))
    return tuple(found)


def page(document: Document) -> Page:
    """Return the page of a document: facts and all parts; blocks of one part are together."""
    title, facts = document.untitled
    parts: list[Part] = []
    if document.end is not None:
        parts.append(Part("status", items=items([document.end])))
    for block in document.blocks:
        part = _part(block)
        i = next((i for i, one in enumerate(parts) if part and one.title == part.title), None)
        if part is not None and i is not None and not isinstance(block, Table | Part):
            before = parts[i]
            parts[i] = replace(
                before,
                items=(*before.items, *part.items),
                remarks=(*before.remarks, *part.remarks),
            )
        elif part is not None:
            parts.append(part)
    return Page(document.kind, title, facts, document.notes, parts, document.versions)


def _part(block: Block) -> Part | None:
    match block:
        case Part():
            return block
        case ErrorRecord():
            return Part("error", items=items(error_lines(block)))
        case Table():
            return table_part(block)
        case Found():
            return Part(block.part, items=finding_items(block.findings, block.known))
        case Prose():
            remarks = (" · ".join(block.facts),) if block.facts else ()
            return Part(block.part, items=items(block.lines), remarks=remarks)
        case Entries():
            found = (
                replace(item, excerpt=excerpt(entry.location))
                for entry in block.entries
                for item in items(entry.lines)
            )
            return Part(block.part, items=tuple(found))
        case Nothing():
            return Part(block.part, remarks=(block.text, *block.reasons))
        case Remarks():
            return Part(block.part, remarks=tuple(block.texts))
        case Drawn() if block.title:
            text = "\n".join(block.rows)
            return Part(block.title, text=text, remarks=tuple(block.remarks))
    return None


def _dumped(record: Any, view: Any) -> str:
    """Return the record as JSON; a view chooses the display, not the record."""
    return record_json.dumps(record)


#: Strict JSON.
JSON = Format(".json", _dumped, _dumped)


def formats(document: Callable[..., Document], *names: str) -> dict[str, Format]:
    """Return all four formats of a record, or those in ``names``.

    Args:
        document: makes the document from the record, a view and the format's name, and any further
            arguments.
    """

    def paged(record: Any, view: Any, *more: Any) -> Page:
        return page(document(record, view, "html", *more))

    def shown(record: Any, view: Any, *more: Any) -> str:
        lines = texts(document(record, view, "terminal", *more), view.width)
        return printed(lines, width=view.width, color=view.color)

    every = {
        "html": Format(".html", lambda *given: pages.render(paged(*given)), page=paged),
        "json": JSON,
        "markdown": Format(".md", lambda *given: markdown(document(*given, "markdown"))),
        "terminal": Format(".txt", shown),
    }
    return {name: every[name] for name in names or every}
