"""Renders pages: self-contained HTML files.

A reporter makes a ``Page`` of the same tables and lines as its other formats, and ``render`` writes
it. ``assets`` has the template, the style and the script. A page is complete without script; with
it, tables sort, filter and fold. Strings are raw: the template escapes them, and its ``finalize``
makes unprintable characters visible.
"""

from __future__ import annotations

import base64
import importlib.resources
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gradscope.charts.maps import Blocks, Map, blocks_svg, map_svg
from gradscope.charts.panels import Panel, panel_svg
from gradscope.typeset.console import Line
from gradscope.typeset.tables import Table
from gradscope.typeset.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: The beginning of a cell, and of the one that names its row.
_OPENING = ("td", "th scope=row")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a source file from the line ``first``; ``marked`` is the highlighted line."""

    first: int
    lines: tuple[str, ...]
    marked: int

    def numbered(self) -> list[tuple[str, bool]]:
        """Yield each line with its number, and True if it is the marked one."""
        numbers = range(self.first, self.first + len(self.lines))
        wide = len(str(numbers[-1]))
        pairs = zip(numbers, self.lines, strict=True)
        return [(f"{n:{wide}} | {line.expandtabs(4)}", n == self.marked) for n, line in pairs]


@dataclass(frozen=True, slots=True)
class Item:
    """A finding or answer: its first line, and further lines.

    ``names`` are the names of its table rows: the first is at the start of ``text``, the others are
    in the last line of ``more``. ``excerpt`` is its code.
    """

    lead: str
    text: str
    tone: str = ""
    more: tuple[Line, ...] = ()
    names: tuple[str, ...] = ()
    excerpt: Excerpt | None = None


def items(lines: Iterable[Line]) -> tuple[Item, ...]:
    """Convert lines of text to items: an item begins with each line that is not indented."""
    found: list[Item] = []
    for line in lines:
        if line.indent and found:
            found[-1] = replace(found[-1], more=(*found[-1].more, line))
        else:
            found.append(Item(line.lead, line.text, line.tone))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file's bytes, as a part of the page; ``text`` is its alternative text."""

    png: bytes
    text: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page under a title: any of these contents, in this order."""

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
    """Make a part of a table, under its own title."""
    return Part(table.title, table.caption, table=table, remarks=table.legend)


@dataclass(frozen=True, slots=True)
class Page:
    """A page's content. ``title`` names the run; ``facts`` are below it, a list for each line."""

    kind: str  # the command that makes it
    title: str
    facts: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    parts: Sequence[Part] = ()
    versions: dict[str, str] | None = None


def render(page: Page, *, live: bool = False) -> str:
    """Render the full file; its security policy forbids all fetches.

    Args:
        page: its content.
        live: True if it is served, and reads updates from ``events`` beside it.
    """
    return _filled("page.html", page=page, places=Places(page.parts), live=live)


def fragment(page: Page) -> str:
    """Render the page without frame and script, for a notebook."""
    # Several may be on one page, each with its own names of places.
    prefix = f"g{zlib.crc32(repr(page).encode(errors='replace')):x}-"
    return _filled("fragment.html", page=page, places=Places(page.parts, prefix))


class Places:
    """Finds places on the page: the row of a name, and the items that mention it."""

    def __init__(self, parts: Sequence[Part], prefix: str = "") -> None:
        self._prefix = prefix
        self._rows: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self._items: dict[str, str] = {}
        self._blocks: dict[str, str] = {}
        for i, part in enumerate(parts):
            for j, name in enumerate(part.table.names if part.table else ()):
                if name:
                    self._rows.setdefault(name, self.id("r", i, j))
                    self._first.setdefault(name.rpartition(".")[0], self.id("r", i, j))
        for i, part in enumerate(parts):
            for j, block in enumerate(part.blocks.blocks if part.blocks else ()):
                self._blocks.setdefault(block.name, self.id("b", i, j))
            for j, item in enumerate(part.items):
                for row in filter(None, map(self.row, item.names)):
                    self._items.setdefault(row, self.id("i", i, j))

    def id(self, kind: str, *numbers: int) -> str:
        """Return the id of an element of the page."""
        return f"{self._prefix}{kind}{'-'.join(map(str, numbers))}"

    def row(self, name: str) -> str | None:
        """Return the row of a name, or of the first name inside it."""
        return self._rows.get(name) or self._first.get(name)

    def block(self, name: str) -> str | None:
        """Return the block of a module or of one of its calls, else of a parameter's module."""
        module = name.partition(" #")[0]
        return self._blocks.get(module) or self._blocks.get(module.rpartition(".")[0])

    def item(self, row: str) -> str | None:
        """Return the first item that is about a row."""
        return self._items.get(row)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("gradscope.pages", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "prose": _prose,
        "lines": _lines,
        "chart": lambda panel: Markup(panel_svg(panel)),
        "map_svg": lambda of, places: Markup(map_svg(of, places.row)),
        "blocks_svg": lambda of, places: Markup(blocks_svg(of, places.row, places.block)),
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        "rows": _rows,
    }
    made.globals |= {"asset": _asset, "linked": _linked}
    return made


def _filled(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values).lstrip()


def _asset(name: str) -> Markup:
    from markupsafe import Markup

    folder = importlib.resources.files("gradscope.pages") / "assets"
    return Markup((folder / name).read_text(encoding="utf-8").rstrip())


def _prose(text: str) -> Markup:
    """Render text with its code spans."""
    from markupsafe import Markup, escape

    parts = re.split(r"`([^`]+)`", plain(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )


def _lines(text: str) -> Markup:
    """Render text unchanged, line by line."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(plain(line)) for line in text.splitlines())


def _linked(item: Item, text: str, names: Iterable[str], places: Places) -> Markup:
    """Render prose with a link to the row of each name that has one."""
    from markupsafe import Markup

    found, rest = Markup(""), text
    for name in names:
        row = places.row(name)
        before, there, after = rest.partition(name)
        if row is None or not there:
            continue
        found += _prose(before) + Markup('<a href="#{}">{}</a>').format(row, plain(name))
        rest = after
    return found + _prose(rest)


def _rows(table: Table) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Yield each row's name, with element, class and text of each cell."""
    head = next((i for i, column in enumerate(table.columns) if column.wraps), 0)
    names = table.names or ("",) * len(table.rows)
    left = ["" if column.right else "l" for column in table.columns]
    return [
        (
            name,
            [
                (_OPENING[i == head], " ".join(filter(None, (left[i], c.tone))), c.text)
                for i, c in enumerate(row)
            ],
        )
        for name, row in zip(names, table.rows, strict=True)
    ]
