"""``gradscope live``: a run's page, kept up to date while the run goes on."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gradscope.api.reading import age, read_history
from gradscope.commands import _completing as completing
from gradscope.commands._options import DisplayOptions, Rank, argument, flag, takes_groups
from gradscope.commands._views import check_look, terminal_width, use_color
from gradscope.commands._write import check_output, say, write_output
from gradscope.errors import ConfigError, visible
from gradscope.records.training import RunHistory
from gradscope.reporters.run.findings import news
from gradscope.reporters.training import page
from gradscope.reporters.views import View
from gradscope.runfile.folder import FOLDER, ChosenRun, chosen_run, file_of, newest_run
from gradscope.runfile.reader import RunFile
from gradscope.typeset.console import printed
from gradscope.typeset.numbers import plural

EXAMPLES = (
    ("gradscope live", "The newest run, while it goes on."),
    ("gradscope live --web", "The same as a page in the browser."),
    ("gradscope live run.db | grep error", "A line for each step, finding and event."),
)
#: Seconds between searches for a missing run, and between pages; age up to which a file may be
#: incomplete.
_PAUSE, _YOUNG = 0.5, 5.0


@takes_groups
def run(
    run: Annotated[
        Path | None,
        argument(
            "RUN",
            "A run's file, folder or name; it need not exist yet (default: the newest run in "
            "`gradscope-runs/`).",
            complete=completing.runs,
        ),
    ] = None,
    *,
    web: Annotated[
        bool,
        flag("--web", "A page in the browser instead, on this machine; charts are updated."),
    ] = False,
    rank: Rank = None,
    display: DisplayOptions,
) -> None:
    """Show the record of `gradscope run` while the script runs, from another terminal.

    In a terminal, the output of `gradscope show RUN` is updated until the run ends or Ctrl-C. In a
    pipe, each step, finding and event is a line.
    """
    check_look(display)
    check_output(None)
    # Ctrl-C is the usual way to leave, and no failure.
    with contextlib.suppress(KeyboardInterrupt):
        chosen, opened = _opened(run, rank)
        with opened:
            if web:
                from gradscope.commands._serving import serve

                serve(opened.source, View(), opens=True)
            elif sys.stdout.isatty():
                refresh(opened, chosen, display)
            else:
                follow(opened, chosen.heading)


def _opened(word: Path | None, rank: int | None) -> tuple[ChosenRun, RunFile]:
    """Wait for the run, and open it.

    Raises:
        ConfigError: the file is not a run, or the folder does not exist.
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
    """Return True if a run may still begin at the path: it is free, or its file is new."""
    if path.is_dir():
        return not any(path.glob("*.db"))
    if not path.exists():
        return path.absolute().parent.is_dir()
    young = age(path)
    return path.is_file() and young is not None and young < _YOUNG and path.suffix == ".db"


#: Share of the time for reading and drawing, if these take long.
_SHARE = 0.25
#: Number of earlier steps that a follower sees.
_BEFORE = 10
#: Number of layers on a page, and on one too high for the terminal.
_LAYERS = (24, 16, 12, 8, 6, 4, 2)


def refresh(opened: RunFile, chosen: ChosenRun, display: DisplayOptions) -> None:
    """Update the page until the run ends; the last page stays in the terminal."""
    show = f"gradscope show {shlex.quote(str(chosen.path))}"
    heading = [] if chosen.heading is None else [Text(visible(chosen.heading))]
    color = use_color(None, display.color)
    console = Console(
        file=sys.stdout,
        force_terminal=True,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    shown = read_history(opened)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for now in _changing(opened, shown):
                shown = now
                view = View(width=terminal_width(None, display.width), command=show)
                live.update(_fitting(shown, heading, view, console.height), refresh=True)
    finally:
        view = View(width=terminal_width(None, display.width), color=color, command=show)
        lines = [*heading, *page(shown, view)]
        write_output(printed(lines, width=view.width, color=color), None)


def follow(opened: RunFile, heading: str | None = None) -> None:
    """Write a line for each new step, finding and event."""
    shown: RunHistory | None = None
    lines = [] if heading is None else [visible(heading)]
    for history in _changing(opened, read_history(opened)):
        lines += news(history, shown, before=_BEFORE)
        if lines:
            write_output("".join(f"{line}\n" for line in lines), None)
        shown, lines = history, []


def _changing(opened: RunFile, history: RunHistory) -> Iterator[RunHistory]:
    """Yield the run after each change, and once more after its end."""
    while True:
        began = time.monotonic()
        yield history
        if history.run.ended is not None:
            return
        took = time.monotonic() - began
        time.sleep(max(_PAUSE, took / _SHARE - took))
        history = read_history(opened, before=history)


def _fitting(history: RunHistory, heading: list[Text], view: View, height: int) -> Text:
    """Return the page with as many layers as fit into the terminal's height."""
    for layers in _LAYERS:
        lines = [*heading, *page(history, replace(view, top=layers))]
        if len(lines) <= height:
            return Text("\n").join(lines)
    more = f"… {plural(len(lines) - height + 1, 'line')} more: {view.command}"
    return Text("\n").join([*lines[: height - 1], Text(more, "dim")])
