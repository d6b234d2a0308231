"""``gradscope show``: a saved report in any format, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._options import (
    Debug,
    DisplayOptions,
    FileOptions,
    Format,
    TableOptions,
    takes_groups,
)
from gradscope.commands._views import ReportOutput
from gradscope.errors import ConfigError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import CheckReport, Report

EXAMPLES = (
    ("gradscope show report.json --sort grad_out --top 10", "The ten largest output gradients."),
    ("gradscope show report.json -f markdown", "The tables for an issue or a pull request."),
    ("gradscope inspect -f json | gradscope show - --table parameters", "Through a pipe."),
)


@takes_groups
def run(
    report: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT",
            help="A saved report; `-` reads standard input.",
            autocompletion=completing.reports,
        ),
    ],
    *,
    format: Format = None,
    file: FileOptions,
    tables: TableOptions,
    display: DisplayOptions,
    debug: Debug = False,
) -> None:
    """Show a saved report again, in any format, without running the model.

    The report is what `gradscope inspect … -o report.json` wrote, or `gradscope check`.
    """
    output = ReportOutput.of(format, file, display, tables)
    output.write(_read(report))


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
