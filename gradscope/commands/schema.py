"""``gradscope schema``: what a config may hold, as JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradscope.commands._options import Debug
from gradscope.commands._write import write_output
from gradscope.config import json_schema


def run(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to FILE; - is standard output."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Overwrite an existing file.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of the config, for editors and other tools."""
    write_output(
        json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", output, force=force
    )
