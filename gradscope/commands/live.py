"""``gradscope live``: a run's page, kept up to date while the run goes on."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from gradscope.api.run_history import age
from gradscope.commands import _completing as completing
from gradscope.commands._live_display import follow, watch
from gradscope.commands._options import DisplayOptions, Rank, takes_groups
from gradscope.commands._runs import ChosenRun, chosen_run, newest_run
from gradscope.commands._views import check_look
from gradscope.commands._write import check_output, say
from gradscope.errors import ConfigError
from gradscope.runfile.folder import FOLDER
from gradscope.runfile.opening import file_of
from gradscope.runfile.reader import RunFile

EXAMPLES = (
    ("gradscope live", "The newest run, while it goes on."),
    ("gradscope live run.db | grep error", "A line for each step, finding and event."),
)
#: How often a missing run is searched for; how old a file may be that is being made.
_PAUSE, _YOUNG = 0.5, 5.0


@takes_groups
def run(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run's file, folder or name; it need not exist yet (default: the newest run in "
            "`gradscope-runs/`).",
            show_default=False,
            autocompletion=completing.runs,
        ),
    ] = None,
    *,
    rank: Rank = None,
    display: DisplayOptions,
) -> None:
    """Show what `gradscope run` records while the script runs, from another terminal.

    In a terminal, the output of `gradscope show RUN` is updated until the run ends or Ctrl-C. In a
    pipe, each step, finding and event is a line.
    """
    check_look(display)
    check_output(None)
    # Ctrl-C is how one leaves, and no failure.
    with contextlib.suppress(KeyboardInterrupt):
        chosen, opened = _opened(run, rank)
        with opened:
            if sys.stdout.isatty():
                watch(opened, chosen, display)
            else:
                follow(opened, chosen.heading)


def _opened(word: Path | None, rank: int | None) -> tuple[ChosenRun, RunFile]:
    """The run, as soon as there is one.

    Raises:
        ConfigError: there is a file, and it is no run; or there is no folder to put one in.
    """
    waiting = False
    while True:
        chosen = newest_run() if word is None else chosen_run(word, "live")
        try:
            if chosen is not None:
                return chosen, RunFile.open(file_of(chosen.path, rank))
        except ConfigError:
            if chosen is not None and not _may_come(chosen.path):
                raise
        if not waiting:
            where = FOLDER if word is None else word
            say(f"no run in `{where}` yet: waiting for one to begin (Ctrl-C ends)")
        waiting = True
        time.sleep(_PAUSE)


def _may_come(path: Path) -> bool:
    """Whether a run may begin there: nothing is in its place, or it is being made."""
    if path.is_dir():
        return not any(path.glob("*.db"))
    if not path.exists():
        return path.absolute().parent.is_dir()
    young = age(path)
    return path.is_file() and young is not None and young < _YOUNG and path.suffix == ".db"
