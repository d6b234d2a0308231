"""``gradscope show``: a saved report, or a training run, in any format and without torch."""

from __future__ import annotations

import sys
from bisect import bisect_left
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from rich.text import Text

from gradscope.api.reading import read_history
from gradscope.commands import _completing as completing
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    Rank,
    TableOptions,
    argument,
    flag,
    option,
    takes_groups,
)
from gradscope.commands._serving import serve_chosen
from gradscope.commands._views import (
    PlotOptions,
    ReportOutput,
    choose_destination,
    diff_view,
    table_view,
)
from gradscope.errors import ConfigError, OptionError, did_you_mean, refuse_unknown
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.records.diff import TABLES_OF_DIFF, DiffReport
from gradscope.records.report import Report
from gradscope.records.training import TrainedModel, TrainingRun, TrainingStep
from gradscope.records.transformer import PROBES
from gradscope.reporters.document import escaped
from gradscope.reporters.run import called, selected, selected_reports, steps
from gradscope.reporters.run.summary import facts_of_step, step_title
from gradscope.reporters.views import View
from gradscope.runfile.folder import RECORD, ChosenRun, chosen_run, file_of, recorded, run_named
from gradscope.runfile.reader import RunFile
from gradscope.typeset.console import printed
from gradscope.typeset.numbers import count
from gradscope.typeset.text import join

EXAMPLES = (
    ("gradscope show report.json --sort grad_out --top 10", "The ten largest output gradients."),
    ("gradscope show report.json -f markdown", "The tables for an issue or a pull request."),
    ("gradscope inspect -f json | gradscope show - --table parameters", "Through a pipe."),
    ("gradscope show", "The newest training run in `gradscope-runs/`."),
    ("gradscope show run.db -l 'layer4.**'", "A training run, these layers only."),
    ("gradscope show run.db --plot run.png", "Its step metrics, and layers over steps, drawn."),
    ("gradscope show runs/train --rank 3", "One rank of a run of several processes."),
    ("gradscope show run.db --step 40", "One step of it, as `inspect` shows a model."),
)
ROOM = "gradscope.reporters.training"
_ROOMS = {DiffReport: "gradscope.reporters.diff", WhyReport: "gradscope.reporters.answers"}
#: Formats that can hold several reports, one below the other.
_FOR_PEOPLE = ("terminal", "markdown")
#: Formats that hold both the calls and the parameters.
_COMPLETE = ("json", "html")


@takes_groups
def run(
    report: Annotated[
        Path | None,
        argument(
            "REPORT|RUN",
            "A saved report (`-` reads standard input), or a run: its file, folder or name "
            "(default: the newest run in `gradscope-runs/`).",
            complete=completing.reports,
        ),
    ] = None,
    *,
    step: Annotated[
        int | None,
        option("N", "A run's calls and parameters at this step."),
    ] = None,
    serve: Annotated[
        bool,
        flag(
            "--serve",
            "Open a run as a page in the browser, on this machine, and keep it up to date.",
        ),
    ] = False,
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
    if serve:
        given = {"-o": file.output, "-f": format, "--step": step, "--plot": plots.plot}
        serve_chosen(chosen, rank, given, display, tables, layers)
        return
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
    """Return the run to show; None for a report.

    Raises:
        ConfigError: the word is neither. OptionError: there is neither a word nor a run.
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
    for name, value in given.items():
        if value is not None and value != []:
            raise OptionError(
                f"`{name}` is for a run, and `{path}` is not a run",
                help=(
                    "`gradscope run SCRIPT.py` records a run; `inspect -l` selects the layers of "
                    "a report"
                ),
            )


def _read(path: Path) -> record_json.Shown:
    if path != Path("-"):
        return record_json.load_shown(path)
    if sys.stdin is None:
        raise OptionError("standard input is closed", help="name the report's file")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("standard input is not a report: it is not UTF-8 text") from None
    return record_json.loads_shown(text, file="<stdin>")


_WORDS = {DiffReport: "a comparison", WhyReport: "a set of answers"}
#: The table options that apply to each kind of record.
_TAKES: dict[type, tuple[str, ...]] = {DiffReport: ("top", "table"), WhyReport: ()}


def write_saved(
    record: DiffReport | WhyReport,
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    tables: TableOptions,
) -> None:
    """Write a saved comparison or answers, as ``diff`` or ``why`` did.

    Raises:
        OptionError: an option does not apply to it.
    """
    kind = type(record)
    destination = choose_destination(format, file, display, _ROOMS[kind])
    given = [f.name for f in fields(tables) if getattr(tables, f.name) not in (None, False)]
    for name in given:
        if name not in _TAKES[kind]:
            raise OptionError(f"`--{name}` is for a report, and this is {_WORDS[kind]}")
    if kind is DiffReport and tables.table is not None:
        refuse_unknown("table", tables.table, TABLES_OF_DIFF)
    view = diff_view(destination, tables.top, tables.table) if kind is DiffReport else None
    destination.show(record, view)


def show_run(
    chosen: ChosenRun,
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    tables: TableOptions,
    layers: LayerOptions,
    plots: PlotOptions,
) -> None:
    """Write a run's page, and its picture if requested.

    Raises:
        OptionError: an option does not apply to a run.
        ConfigError: the file is not a run, or damaged.
    """
    destination = choose_destination(format, file, display, ROOM, chosen.heading)
    view = table_view(destination, tables)
    if destination.format == "csv":
        view = _for_csv(view)
    steps.check(view)
    patterns, exclude = layers.layers or (), layers.exclude or ()
    wanted = bool(patterns or exclude or plots.plot) or "calls" in view.tables
    wanted = wanted or destination.format in _COMPLETE
    with RunFile.open(chosen.path) as run:
        history = read_history(run, calls=wanted)
    history = selected(history, patterns, exclude)
    destination.show(history, view)
    plots.write(history, file)


def _for_csv(view: View) -> View:
    """Return the view for csv: the steps, unless another table is chosen.

    Raises:
        OptionError: an order or columns of layers are given, but csv has a row for each step.
    """
    if view.table in ("parameters", "updates", "calls", *PROBES) and (
        view.columns or view.sort or view.top
    ):
        raise OptionError(
            f"csv has a row for each of the {view.table} and each step, with all that was measured",
            help="drop `--columns`, `--sort` and `--top`; `-l PATTERN` selects layers",
        )
    return replace(view, table=view.table or "steps")


def show_step(
    chosen: ChosenRun,
    step: int,
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    tables: TableOptions,
    layers: LayerOptions,
) -> None:
    """Write one step's calls and parameters, model by model.

    Raises:
        OptionError: the step was not sampled, or several models do not fit one document.
        ConfigError: the file is not a run, or damaged.
    """
    output = ReportOutput.of(format, file, display, tables, chosen.heading)
    with RunFile.open(chosen.path) as run:
        samples = run.sample(step)
        metrics = next(iter(run.steps(step, step)), None)
        if not samples:
            raise _not_sampled(run, step, metrics)
        head, models = run.run, {model.id: model for model in run.models}
    found = [
        (models.get(one.model, TrainedModel(one.model, "", "", 0, 0, 0)), one.report)
        for one in samples
    ]
    found = selected_reports(found, layers.layers or (), layers.exclude or ())
    if len(found) > 1 and output.destination.format not in _FOR_PEOPLE:
        names = [called(model) for model, _ in found]
        raise OptionError(
            f"step {count(step)} has {len(found)} models, and {output.destination.format} holds "
            "one report",
            help=f"name one of {', '.join(names)}: `-l '{names[0]}.**'`",
        )
    output.destination.write(_pages(output, head, step, metrics, found))


def _pages(
    output: ReportOutput,
    run: TrainingRun,
    step: int,
    metrics: TrainingStep | None,
    found: list[tuple[TrainedModel, Report]],
) -> str:
    """Yield each model's report below a line with the run and the step."""
    texts = [output.render(report) for _, report in found]
    facts = [step_title(run, step), *(facts_of_step(metrics) if metrics else [])]
    if output.destination.format == "markdown":
        return "\n".join([f"# {escaped(facts[0])}\n\n{escaped(' · '.join(facts[1:]))}\n", *texts])
    if output.destination.format != "terminal":
        return texts[0]
    view = output.view
    lines = [Text(line) for line in join(facts, view.width)]
    lines[0].stylize("bold", 0, len(facts[0]))
    return "\n".join([printed(lines, width=view.width, color=view.color), *texts])


def _not_sampled(run: RunFile, step: int, metrics: TrainingStep | None) -> OptionError:
    sampled = run.sampled
    if metrics is None:
        total = run.last_step
        if not total:
            return OptionError(f"the run has no step yet, so no step {count(step)}")
        return OptionError(
            f"the run has no step {count(step)}",
            help=f"the run has steps 1 to {count(total)}"
            if run.steps(1, 1)
            else f"the run's last step is {count(total)}; not all of the first ones are kept",
        )
    i = bisect_left(sampled, step)
    near = [count(one) for one in sampled[max(0, i - 1) : i + 1]]
    return OptionError(
        f"step {count(step)} was not sampled",
        notes=[f"its metrics: {', '.join(facts_of_step(metrics))}"],
        help=f"the nearest sampled steps: {' and '.join(near)}" if near else "no step was sampled",
    )
