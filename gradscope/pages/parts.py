"""The parts of a page. Strings are raw: the template escapes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradscope.charts.blocks import Blocks
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.typeset.console import Line
from gradscope.typeset.tables import Table


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a source file from the line ``first``; ``marked`` is the one that is meant."""

    first: int
    lines: tuple[str, ...]
    marked: int

    def numbered(self) -> list[tuple[str, bool]]:
        """Each line after its number, and whether it is the marked one."""
        numbers = range(self.first, self.first + len(self.lines))
        wide = len(str(numbers[-1]))
        pairs = zip(numbers, self.lines, strict=True)
        return [(f"{n:{wide}} | {line.expandtabs(4)}", n == self.marked) for n, line in pairs]


@dataclass(frozen=True, slots=True)
class Item:
    """Something that was found: its first line, and those that say more.

    ``names`` are the rows that it is about, as their tables name them: the first is at the
    head of ``text``, the others in the last of ``more``. ``excerpt`` is the code that it speaks of.
    """

    lead: str
    text: str
    tone: str = ""
    more: tuple[Line, ...] = ()
    names: tuple[str, ...] = ()
    excerpt: Excerpt | None = None


def items(lines: Iterable[Line]) -> tuple[Item, ...]:
    """Lines of prose as items: one begins with each line that is not indented."""
    found: list[Item] = []
    for line in lines:
        if line.indent and found:
            found[-1] = replace(found[-1], more=(*found[-1].more, line))
        else:
            found.append(Item(line.lead, line.text, line.tone))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file's bytes, as a part of the page; ``text`` is for those who cannot see it."""

    png: bytes
    text: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page under its title: whatever of this it has, in this order."""

    title: str
    caption: str = ""
    items: tuple[Item, ...] = ()
    text: str = ""  # as it is, in a fixed width
    panels: tuple[Panel, ...] = ()
    maps: tuple[Map, ...] = ()
    blocks: Blocks | None = None
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None
    remarks: tuple[str, ...] = ()


def table_part(table: Table) -> Part:
    """A table under its own title."""
    return Part(table.title, table.caption, table=table, remarks=table.legend)


@dataclass(frozen=True, slots=True)
class Page:
    """``title`` is what was run, ``facts`` are reported below it, a list for each line."""

    kind: str  # the command that makes it
    title: str
    facts: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    parts: Sequence[Part] = ()
    versions: dict[str, str] | None = None
