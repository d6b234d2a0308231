"""``show`` of a run: its page, or one step as ``inspect`` shows it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from rich.text import Text

from gradscope import plugins
from gradscope.api.run_history import read_history
from gradscope.commands._options import DisplayOptions, FileOptions, LayerOptions
from gradscope.commands._plots import PlotOptions
from gradscope.commands._runs import ChosenRun
from gradscope.commands._tables import TableOptions
from gradscope.commands._views import ReportOutput, choose_destination, table_view
from gradscope.errors import OptionError
from gradscope.records.report import Report
from gradscope.records.training import TrainedModel, TrainingRun, TrainingStep
from gradscope.reporters.markdown_text import escaped
from gradscope.reporters.report import View
from gradscope.reporters.training.sentences.step_facts import facts_of_step, step_title
from gradscope.reporters.training.tables import choices
from gradscope.reporters.training.tables.naming import (
    called,
    selected,
    selected_reports,
)
from gradscope.runfile.reader import RunFile
from gradscope.typeset.console import printed
from gradscope.typeset.numbers import count
from gradscope.typeset.text import join

ROOM = "gradscope.reporters.training"
#: The formats in which several reports can be below each other.
_FOR_PEOPLE = ("terminal", "markdown")
#: Those that hold the calls beside the parameters.
_COMPLETE = ("json", "html")


def show_run(
    chosen: ChosenRun,
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    tables: TableOptions,
    layers: LayerOptions,
    plots: PlotOptions,
) -> None:
    """Write a run's page, and draw it where that is asked for.

    Raises:
        OptionError: an option that no run can honour.
        ConfigError: the file is no run, or damaged.
    """
    destination = choose_destination(format, file, display, ROOM, chosen.heading)
    view = table_view(destination, tables)
    if destination.format == "csv":
        view = _for_csv(view)
    choices.check(view)
    patterns, exclude = layers.layers or (), layers.exclude or ()
    wanted = bool(patterns or exclude or plots.plot) or view.table == "calls"
    wanted = wanted or destination.format in _COMPLETE
    with RunFile.open(chosen.path) as run:
        history = read_history(run, calls=wanted)
    history = selected(history, patterns, exclude)
    destination.write(plugins.load(ROOM, destination.format).render(history, view))
    plots.write(history, file)


def _for_csv(view: View) -> View:
    """What csv holds, where nothing else is asked for: the steps.

    Raises:
        OptionError: an order or columns of layers, of which it has a row for each step.
    """
    if view.table in ("parameters", "calls") and (view.columns or view.sort or view.top):
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
        ConfigError: the file is no run, or damaged.
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
    """Each model's report below a line that says run and step."""
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
