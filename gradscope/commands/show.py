"""``gradscope show``: a saved report in any format, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradscope.commands._model import Debug
from gradscope.commands._views import (
    Color,
    Columns,
    Fold,
    Force,
    Format,
    Output,
    Sort,
    Table,
    Top,
    Width,
    plan_output,
    write_report,
)
from gradscope.errors import ConfigError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import CheckReport, Report


def run(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT", help="A saved report; `-` reads standard input.")
    ],
    format: Format = None,
    output: Output = None,
    force: Force = False,
    sort: Sort = None,
    top: Top = None,
    columns: Columns = None,
    table: Table = None,
    fold: Fold = False,
    color: Color = "auto",
    width: Width = None,
    debug: Debug = False,
) -> None:
    """Show a saved report again, in any format, without running the model.

    The report is what `gradscope inspect … -o report.json` wrote, or `gradscope check`.
    """
    destination = plan_output(
        format=format,
        output=output,
        force=force,
        sort=sort,
        top=top,
        columns=columns,
        table=table,
        fold=fold,
        color=color,
        width=width,
    )
    write_report(_read(report), destination)


def _read(path: Path) -> Report | CheckReport:
    if path != Path("-"):
        return record_json.load_shown(path)
    if sys.stdin is None:
        raise OptionError("standard input is closed", help="name the report's file")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("standard input is no report: it is not UTF-8 text") from None
    return record_json.loads_shown(text, file="<stdin>")
