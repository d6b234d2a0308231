"""``gradscope experiment``: is it the model, the loss, the data or the learning rate?"""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope import plugins
from gradscope.api.experimenting import SECONDS, STEPS, Experiment
from gradscope.click import Context
from gradscope.commands import _completing as completing
from gradscope.commands import run as run_command
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    argument,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import shown_progress
from gradscope.commands._trials import refuse_several_processes
from gradscope.commands._views import PlotOptions, choose_destination
from gradscope.commands._write import say
from gradscope.commands.run import note_passed_on
from gradscope.errors import OptionError
from gradscope.experiment.arms import NAMES, chosen
from gradscope.experiment.scratch import Scratch
from gradscope.reporters.views import TextView
from gradscope.training.launch import Script
from gradscope.typeset.numbers import duration, plural, size

ROOM = "gradscope.reporters.experiment"
EXAMPLES = (
    ("gradscope experiment train.py --epochs 1", "All arms; the words after the script go to it."),
    ("gradscope experiment --arms one-batch train.py", "Does the model overfit one batch?"),
    ("gradscope experiment --steps 300 --jobs 2 train.py", "Longer arms, two at a time."),
    ("gradscope experiment --plot losses.png train.py", "The losses of all arms as a picture."),
)
_FAILED = 3
Parser = run_command.Parser


@takes_groups
def run(
    context: typer.Context,
    script: Annotated[
        list[str],
        argument(
            "SCRIPT.py | -m MODULE [ARGS]…",
            "The training script, or a module as for `python -m`, and its arguments.",
        ),
    ],
    *,
    arms: Annotated[
        str | None,
        option(
            "NAME,…",
            f"Run only these arms beside the plain one: {', '.join(NAMES)}.",
            complete=completing.one_of(NAMES),
        ),
    ] = None,
    steps: Annotated[
        int, option("N", "End each arm after N steps, counted over all optimizers.", min=1)
    ] = STEPS,
    seconds: Annotated[float, option("T", "End each arm after T seconds.")] = SECONDS,
    jobs: Annotated[int, option("N", "Run N arms at a time.", min=1)] = 1,
    format: Annotated[str | None, format_option(ROOM)] = None,
    file: FileOptions,
    plots: PlotOptions,
    display: DisplayOptions,
) -> None:
    """Say why a script does not learn: model or loss, input, targets or learning rate.

    The unmodified script runs a few times for some steps, each time with one change: one batch, no
    input, other learning rates. The losses are compared with those of the script as it is. Each arm
    runs in its own process, in a scratch copy of the working folder, which is deleted afterwards.
    """
    plots.check(file)
    refuse_several_processes()
    destination = choose_destination(format, file, display, ROOM)
    wanted = chosen([name.strip() for name in arms.split(",")] if arms is not None else [])
    experiment = Experiment(_script(script, context), wanted, steps, seconds, jobs)
    note_passed_on(context, experiment.script)
    say(_cost(experiment))
    with shown_progress():
        report = experiment.report()
    view = TextView(width=destination.width, color=destination.color)
    destination.write(plugins.load(ROOM, destination.format).render(report, view))
    plots.write(report, file)
    if experiment.interruption is not None:
        raise experiment.interruption
    if report.status == "failed":
        raise typer.Exit(_FAILED)


def _script(words: list[str], context: Context) -> Script:
    found = run_command.script_or_restart(words, context.meta["options"])
    if isinstance(found, run_command.Restart):
        raise OptionError(
            "the arms run in gradscope's Python, without options of the interpreter",
            help="give the script alone: `gradscope experiment train.py`",
        )
    return found


def _cost(experiment: Experiment) -> str:
    """Return a sentence on the most time and disk space that the experiment takes."""
    arms, jobs = len(experiment.arms), experiment.jobs
    most = duration(-(-arms // jobs) * experiment.seconds)
    copy: Scratch = experiment.scratch
    files = f"{plural(len(copy.copied), 'file')} ({size(copy.size * jobs)}) copied"
    linked = f", {len(copy.linked)} linked" if copy.linked else ""
    return (
        f"up to {plural(arms, 'arm')} of {plural(experiment.steps, 'step')}, at most {most}; "
        f"scratch copy: {files}{linked}"
    )
