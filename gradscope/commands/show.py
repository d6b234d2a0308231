"""``gradscope show``: a saved report, or a training run, in any format and without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    Rank,
    takes_groups,
)
from gradscope.commands._plots import PlotOptions
from gradscope.commands._run_pages import show_run, show_step
from gradscope.commands._tables import TableOptions
from gradscope.commands._views import ReportOutput
from gradscope.errors import ConfigError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import CheckReport, Report
from gradscope.reporters.report.charts.depth import panels
from gradscope.runfile.opening import file_of, is_run

EXAMPLES = (
    ("gradscope show report.json --sort grad_out --top 10", "The ten largest output gradients."),
    ("gradscope show report.json -f markdown", "The tables for an issue or a pull request."),
    ("gradscope inspect -f json | gradscope show - --table parameters", "Through a pipe."),
    ("gradscope show run.db -l 'layer4.**'", "A training run, of these layers."),
    ("gradscope show run.db --plot run.png", "Its vital signs, and layers over steps, drawn."),
    ("gradscope show runs/train --rank 3", "Of a run of several processes, what one saw."),
    ("gradscope show run.db --step 40", "One step of it, as `inspect` shows a model."),
)


@takes_groups
def run(
    report: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT|RUN",
            help="A saved report (`-` reads standard input), or a run's file or folder.",
            autocompletion=completing.reports,
        ),
    ],
    *,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a run: this step's calls and parameters."),
    ] = None,
    rank: Rank = None,
    layers: LayerOptions,
    format: Format = None,
    file: FileOptions,
    plots: PlotOptions,
    tables: TableOptions,
    display: DisplayOptions,
) -> None:
    """Show a saved report, or what `gradscope run` recorded, in any format.

    A report is what `gradscope inspect … -o report.json` wrote, or `gradscope check`. A run has
    vital signs, findings, events, and its parameters over the steps; its tables are
    `steps`, `parameters`, `calls`, `findings` and `events`. `--step N` shows one step of it as
    `gradscope inspect` shows a model.
    """
    plots.check(file)
    if is_run(report):
        report = file_of(report, rank)
        if step is None:
            show_run(report, format, file, display, tables, layers, plots)
        else:
            plots.refuse("`--step`, which has no course over steps")
            show_step(report, step, format, file, display, tables, layers)
        return
    output = ReportOutput.of(format, file, display, tables)
    _refuse_options_of_runs(report, step, rank, layers)
    shown = _read(report)
    if isinstance(shown, CheckReport):
        plots.refuse("a check, which holds findings only")
    output.write(shown)
    if isinstance(shown, Report):
        plots.write(shown.run.model, panels(shown), file)


def _refuse_options_of_runs(
    path: Path, step: int | None, rank: int | None, layers: LayerOptions
) -> None:
    given = {"--step": step, "--rank": rank, "-l": layers.layers, "--exclude": layers.exclude}
    for option, value in given.items():
        if value is not None and value != []:
            raise OptionError(
                f"`{option}` is for a run, and `{path}` is none",
                help="a run is what `gradscope run SCRIPT.py` recorded; a report holds the layers "
                "that `inspect -l` chose",
            )


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
