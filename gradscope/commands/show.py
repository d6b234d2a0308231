"""``gradscope show``: a saved report, or a training run, in any format and without torch."""

from __future__ import annotations

import sys
from dataclasses import replace
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
from gradscope.commands._runs import RECORD, ChosenRun, chosen_run
from gradscope.commands._saved_records import write_saved
from gradscope.commands._tables import TableOptions
from gradscope.commands._views import ReportOutput
from gradscope.errors import ConfigError, OptionError, did_you_mean
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.records.diff import DiffReport
from gradscope.records.report import CheckReport, Report
from gradscope.runfile.folder import recorded, run_named
from gradscope.runfile.opening import file_of

EXAMPLES = (
    ("gradscope show report.json --sort grad_out --top 10", "The ten largest output gradients."),
    ("gradscope show report.json -f markdown", "The tables for an issue or a pull request."),
    ("gradscope inspect -f json | gradscope show - --table parameters", "Through a pipe."),
    ("gradscope show", "The newest training run in `gradscope-runs/`."),
    ("gradscope show run.db -l 'layer4.**'", "A training run, these layers only."),
    ("gradscope show run.db --plot run.png", "Its step metrics, and layers over steps, drawn."),
    ("gradscope show runs/train --rank 3", "Of a run of several processes, one rank."),
    ("gradscope show run.db --step 40", "One step of it, as `inspect` shows a model."),
)


@takes_groups
def run(
    report: Annotated[
        Path | None,
        typer.Argument(
            metavar="REPORT|RUN",
            help="A saved report (`-` reads standard input), or a run: its file, folder or name "
            "(default: the newest run in `gradscope-runs/`).",
            show_default=False,
            autocompletion=completing.reports,
        ),
    ] = None,
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
    """Show a saved report or a recorded run, in any format.

    `gradscope inspect … -o report.json` writes a report; so do `check`, `why` and `diff`. A run has
    step metrics, findings, events, and its parameters over the steps; its tables are `steps`,
    `parameters`, `calls`, `findings` and `events`. `--step N` shows a single step, as
    `gradscope inspect` shows a model.
    """
    plots.check(file)
    chosen = _run(report)
    if chosen is not None:
        chosen = replace(chosen, path=file_of(chosen.path, rank))
        if step is None:
            show_run(chosen, format, file, display, tables, layers, plots)
        else:
            plots.refuse("`--step`, which is a single step")
            show_step(chosen, step, format, file, display, tables, layers)
        return
    assert report is not None
    output = ReportOutput.of(format, file, display, tables)
    _refuse_options_of_runs(report, step, rank, layers)
    shown = _read(report)
    if not isinstance(shown, Report):
        plots.refuse("a check, answers or a comparison")
    if isinstance(shown, DiffReport | WhyReport):
        write_saved(shown, format, file, display, tables)
        return
    output.write(shown)
    if isinstance(shown, Report):
        plots.write(shown, file)


def _run(word: Path | None) -> ChosenRun | None:
    """The run that is shown; None where a report is.

    Raises:
        ConfigError: the word is neither.
        OptionError: there is no word, and no run.
    """
    if word is None:
        return chosen_run(None, "show")
    path = None if word == Path("-") else run_named(word)
    if path is None and not word.suffix and word != Path("-") and not word.exists():
        names = [one.stem for one in recorded()]
        help = did_you_mean(word.name, names) or f"for a run: {RECORD}"
        raise ConfigError(f"no run and no report is named `{word}`", help=help)
    return None if path is None else ChosenRun(path)


def _refuse_options_of_runs(
    path: Path, step: int | None, rank: int | None, layers: LayerOptions
) -> None:
    given = {"--step": step, "--rank": rank, "-l": layers.layers, "--exclude": layers.exclude}
    for option, value in given.items():
        if value is not None and value != []:
            raise OptionError(
                f"`{option}` is for a run, and `{path}` is not a run",
                help=(
                    "`gradscope run SCRIPT.py` records a run; `inspect -l` selects the layers of "
                    "a report"
                ),
            )


def _read(path: Path) -> Report | CheckReport | WhyReport | DiffReport:
    if path != Path("-"):
        return record_json.load_shown(path)
    if sys.stdin is None:
        raise OptionError("standard input is closed", help="name the report's file")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("standard input is not a report: it is not UTF-8 text") from None
    return record_json.loads_shown(text, file="<stdin>")
