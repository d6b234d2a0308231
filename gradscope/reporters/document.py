"""A record as a document, once for all formats: tables, lines and findings; and its terminal text.

A record's file makes a ``Document`` of it. ``markdown.py`` and ``page.py`` are the other writers,
``formats.py`` makes a format of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from gradscope.pages import Part
from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord
from gradscope.reporters.finding_lines import Known, error_lines, every_line, nothing
from gradscope.reporters.header import fact_lines
from gradscope.typeset.console import Line, dimmed, paragraphs, prose, stacked, table_lines
from gradscope.typeset.tables import Table
from gradscope.typeset.text import join


@dataclass(frozen=True, slots=True)
class Found:
    """Findings, similar ones together; texts show a title if they are ``titled``."""

    findings: Sequence[Finding]
    known: Known = nothing
    part: str = "findings"
    titled: bool = True


@dataclass(frozen=True, slots=True)
class Said:
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
Block = ErrorRecord | Table | Found | Said | Entries | Nothing | Remarks | Drawn | Part


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
        end: how the run ended.
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
    """The document's lines for a terminal; without a width nothing is hidden and nothing breaks."""
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
        case Said():
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
