"""Lists for people: the layers of a model (``FORMATS``), with the names that patterns match; the
methods of saliency; the keys of a config.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from gradscope.plugins import Format
from gradscope.records.data import to_data
from gradscope.records.modules import LayerInfo
from gradscope.records.saliency import MethodText
from gradscope.reporters.views import TextView
from gradscope.typeset.console import STYLES, dimmed, printed, table_lines, table_rows
from gradscope.typeset.numbers import count, plural
from gradscope.typeset.tables import Cell, Heading, Table
from gradscope.typeset.text import break_words, plain

if TYPE_CHECKING:
    from gradscope.config.schema import KeyText


def _terminal(layers: Sequence[LayerInfo], view: TextView) -> str:
    """Write each layer's name and type, the number of parameters in and below it, and its own by
    name and shape."""
    return printed(_lines(layers, view.width), width=view.width, color=view.color)


def _lines(layers: Sequence[LayerInfo], width: int | None) -> Iterator[Text]:
    columns = (
        Heading("layer", right=False),
        Heading("type", right=False),
        Heading("parameters"),
        Heading("its own", right=False),
    )
    table = Table("", columns, tuple(map(_row, layers)), fixed=True)
    yield from table_rows(table, width, rule=False)
    yield Text()
    yield Text(plural(len(layers), "layer"))


def _row(layer: LayerInfo) -> tuple[Cell, ...]:
    names = " = ".join(map(plain, (layer.name or '"" (the model)', *layer.aliases)))
    own = "  ".join(
        f"{plain(name)} {_shape(shape)}{'' if trains else ' (frozen)'}"
        for name, shape, trains in layer.parameters
    )
    total = count(layer.total) if layer.total else "–"
    return tuple(map(Cell, (names, plain(layer.type), total, own)))


def _shape(sizes: tuple[int, ...] | None) -> str:
    if sizes is None:
        return "(lazy)"
    return "×".join(map(str, sizes)) or "scalar"


def _json(layers: Sequence[LayerInfo], view: TextView) -> str:
    """Write the records: every layer with its own parameters."""
    return json.dumps({"layers": to_data(layers)}, indent=1) + "\n"


FORMATS = {"json": Format(".json", _json), "terminal": Format(".txt", _terminal)}


_COLUMNS = (
    Heading("method", False),
    Heading("what the map shows", False, 60, prose=True),
    Heading("options", False, 90, prose=True),
    Heading("paper", False, 50),
)


def methods(listed: Sequence[MethodText], view: TextView) -> str:
    """Return one row for each method: its summary, its options and its paper."""
    rows = tuple(
        tuple(Cell(plain(text)) for text in (m.name, m.summary, ", ".join(m.options), m.paper))
        for m in listed
    )
    table = table_lines(Table("methods", _COLUMNS, rows), view.width)
    return printed(table, width=view.width, color=view.color)


_MARGIN = 4


def keys(listed: Iterable[KeyText], view: TextView) -> str:
    """Return a paragraph for each key: its name, its form, its default, and its meaning.

    The keys of a group are below it.
    """
    return printed(_key_lines(listed, view.width), width=view.width, color=view.color)


def _key_lines(listed: Iterable[KeyText], width: int | None) -> Iterator[Text]:
    room = None if width is None else max(1, width - _MARGIN)
    for key in listed:
        facts = f"{key.takes}; default {key.default}" if key.default else key.takes
        head, *rest = break_words(f"{key.name}: {facts}", room)
        yield Text.assemble((key.name, STYLES["head"]), (head[len(key.name) :], "dim"))
        yield from (Text(" " * _MARGIN + line, "dim") for line in rest)
        yield from (Text(" " * _MARGIN + line) for line in break_words(key.description, room))
    yield Text()
    yield from dimmed("Set one in the config, or on the command line: `steps=3`.", width)
