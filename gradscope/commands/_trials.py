"""``why SCRIPT.py``: the script is run for some steps, and the verdict is the result."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gradscope import plugins, progress
from gradscope.commands._progress import shown_progress
from gradscope.commands._trial_result import TrialResult
from gradscope.commands._views import Destination
from gradscope.commands._write import check_output, say
from gradscope.config.python_files import parsed
from gradscope.config.training_scripts import does_something, trains
from gradscope.errors import OptionError, visible
from gradscope.output_files import expanded, whole_file
from gradscope.reporters.text_view import TextView
from gradscope.rules import reaches
from gradscope.runfile.database import copy
from gradscope.training.launch import Script
from gradscope.training.trial import Trial, tried
from gradscope.typeset.console import paragraphs, printed

ROOM = "gradscope.reporters.answers"
_SCRIPT = "Script"
_FAILED = 3


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """For how long a script is run, and what becomes of what it prints."""

    panel: ClassVar[str] = _SCRIPT

    steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="End the script after N steps (default: 50).", min=1),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(metavar="T", help="End it after T seconds (default: 60)."),
    ] = None
    every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sample every Nth step (default: every 3rd).", min=1),
    ] = None
    show_output: Annotated[
        bool,
        typer.Option(
            "--show-output",
            metavar="",
            help="Show the script's output on standard error. Without it, only the standard error "
            "of a script that fails is shown.",
        ),
    ] = False

    @property
    def given(self) -> str | None:
        """An option that was given."""
        names = [one.name for one in fields(self) if getattr(self, one.name)]
        return f"--{names[0].replace('_', '-')}" if names else None

    def trial(self, script: Script) -> Trial:
        """How the script is tried.

        Raises:
            OptionError: that is no time.
        """
        usual = Trial(script)
        seconds = usual.seconds if self.seconds is None else self.seconds
        if not 0 < seconds < float("inf"):
            raise OptionError(f"`--seconds {seconds:g}` is not a time", help="give more than 0")
        output = sys.stderr.fileno() if self.show_output and sys.stderr is not None else None
        return Trial(script, self.steps or usual.steps, seconds, self.every, output)


def is_script(word: str) -> bool:
    """Whether a path is a script that trains, or one with unknown content.

    A file with a model class in it is a script only where it trains, and then that is reported.
    """
    path = expanded(word)
    if path.suffix.lower() != ".py" or not path.is_file():
        return False
    file = parsed(path)
    if file is None:  # Python says what is wrong with it
        return True
    if not trains(file):
        return not file.models and does_something(file)
    if file.models:
        start = word if word.startswith((".", "/", "~")) else f"./{word}"
        say(
            f"`{word}` trains, so it runs as a script. To ask about a model in it: "
            f"`gradscope why {start}:{file.models[-1]}`"
        )
    return True


def refuse_several_processes() -> None:
    """Refuse to be one of several processes that a launcher started.

    Raises:
        OptionError: this is one.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise OptionError(
            "`gradscope why SCRIPT.py` runs the script in one process",
            help="with several: `torchrun … -m gradscope run SCRIPT.py`, then `gradscope why RUN`",
        )


def try_script(
    trial: Trial,
    patterns: Sequence[str],
    exclude: Sequence[str],
    destination: Destination,
    *,
    keep: Path | None,
    fail_on: str,
) -> None:
    """Run the script, and write the verdict, or what was found of the layers that are asked for.

    Args:
        keep: where the run is kept; None: nowhere.
        fail_on: the severity of a finding from which on the command ends with 1.

    Raises:
        OptionError: the run cannot be recorded, or not be kept.
        LayerError: a pattern that matches nothing.
        typer.Exit: the script failed, or something was found.
    """
    check_output(keep, force=destination.force)
    with ExitStack() as trying:
        with nullcontext() if trial.output is not None else shown_progress():
            progress.begin(f"running {trial.script.words}")
            ended = trying.enter_context(tried(trial))
        result = TrialResult.of(ended, trial, keep)
        if result is None or result.failed:
            sys.stderr.write(visible(ended.errors))
        if result is None:
            raise ended.interruption or OptionError(f"the script was not run: {ended.ending}")
        if keep is not None:
            _keep(ended.run, keep, force=destination.force)
        report = result.report(patterns, exclude)
        if destination.format == "terminal" and not (patterns or exclude):
            width, color = destination.width, destination.color
            lines = paragraphs(result.verdict(), width)
            destination.write(printed(lines, width=width, color=color))
        else:
            view = TextView(width=destination.width, color=destination.color)
            destination.write(plugins.load(ROOM, destination.format).render(report, view))
    if ended.interruption is not None:
        raise ended.interruption
    if result.failed:
        raise typer.Exit(_FAILED)
    if reaches(report.answers, fail_on):
        raise typer.Exit(1)


def _keep(run: Path, target: Path, *, force: bool) -> None:
    try:
        with whole_file(target, force=force) as file:
            copy(run, file)
    except sqlite3.Error as error:
        raise OptionError(f"cannot write the run to `{target}`: {error}") from None
