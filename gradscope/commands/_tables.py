"""Options that select the tables of a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._options import TABLES


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the tables of a report show."""

    panel: ClassVar[str] = TABLES

    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by a column: numbers descend, names ascend, empty cells come last. "
            "`norm:asc` and `name:desc` reverse it.",
            autocompletion=completing.sort,
        ),
    ] = None
    top: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N calls, and N parameters.")
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Columns of the calls: `norm,grad_out`, `+min,+max` besides the usual ones, "
            "`all`. With `--table parameters`: of the parameters.",
            autocompletion=completing.columns,
        ),
    ] = None
    table: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Only this table: `calls`, `parameters` or `findings`.",
            autocompletion=completing.tables,
        ),
    ] = None
    depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only modules down to this depth: 1 is the model and its direct parts.",
        ),
    ] = None
    bar: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Bars beside a column, on a log scale: `grad_out`.",
            autocompletion=completing.column,
        ),
    ] = None
    fold: Annotated[
        bool,
        typer.Option(
            "--fold",
            help="Merge equal blocks in a row: `h.0…11.mlp ×12`.",
        ),
    ] = False
