"""The list of layers, with the names that patterns match."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.text import Text

from gradscope.plugins import Format
from gradscope.records.data import to_data
from gradscope.records.modules import LayerInfo
from gradscope.reporters.views import TextView
from gradscope.typeset.console import printed, table_rows
from gradscope.typeset.numbers import count, plural
from gradscope.typeset.tables import Cell, Heading, Table
from gradscope.typeset.text import plain


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
