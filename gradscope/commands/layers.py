"""``gradscope layers``: the names that layer patterns match."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.cells import cell_len

from gradscope.commands._model import Allow, Debug, Device, Exclude, Layers, Set, Words, read_model
from gradscope.commands._write import keep_stdout_clean, write_output
from gradscope.errors import OptionError
from gradscope.records.json import to_data
from gradscope.records.modules import LayerInfo
from gradscope.typeset.text import plain


def run(
    words: Words = None,
    settings: Set = None,
    layers: Layers = None,
    exclude: Exclude = None,
    device: Device = None,
    format: Annotated[
        str, typer.Option("-f", "--format", metavar="FORMAT", help="terminal or json.")
    ] = "terminal",
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """List a model's layers by the names that patterns match, with their own parameters."""
    if format not in ("terminal", "json"):
        raise OptionError(f"unknown format `{format}`", help="one of terminal, json")
    loaded = read_model(words, settings, {"layers": layers, "device": device})
    from gradscope import api

    with keep_stdout_clean():
        found = api.layers(loaded, exclude=exclude or (), allow=allow or ())
    if format == "json":
        write_output(json.dumps({"layers": to_data(found)}, indent=1) + "\n", None)
    else:
        write_output(_table(found), None)


def _table(found: tuple[LayerInfo, ...]) -> str:
    """Name, type, parameters of it and all below, and its own by name and shape."""
    rows = [("layer", "type", "parameters", "its own")]
    for layer in found:
        own = "  ".join(
            f"{plain(name)} {'×'.join(map(str, shape)) or 'scalar'}{'' if trains else ' (frozen)'}"
            for name, shape, trains in layer.parameters
        )
        names = " = ".join(plain(name) for name in (_shown(layer.name), *layer.aliases))
        rows.append((names, layer.type, f"{layer.total:,}" if layer.total else "–", own))
    name, kind, total = (max(cell_len(row[i]) for row in rows) for i in range(3))
    lines = [
        f"{_padded(row[0], name)}  {_padded(row[1], kind)}  {row[2]:>{total}}  {row[3]}".rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", f"{len(found)} layer{'s' if len(found) != 1 else ''}"]) + "\n"


def _padded(text: str, width: int) -> str:
    """Filled up to a width on the screen, where some characters take two cells."""
    return text + " " * (width - cell_len(text))


def _shown(name: str) -> str:
    return name or '"" (the model)'
