"""A run that goes on: as a page that is drawn again, or as lines that are added."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gradscope.api.run_history import read_history
from gradscope.commands._options import DisplayOptions
from gradscope.commands._runs import ChosenRun
from gradscope.commands._views import terminal_width, use_color
from gradscope.commands._write import write_output
from gradscope.errors import visible
from gradscope.records.history import RunHistory
from gradscope.reporters.report import View
from gradscope.reporters.training import terminal
from gradscope.reporters.training.sentences.news import news
from gradscope.runfile.reader import RunFile
from gradscope.typeset.console import printed
from gradscope.typeset.numbers import plural

#: Twice a second; where reading and drawing take long, they get this share of the time.
_PAUSE, _SHARE = 0.5, 0.25
#: How many of the steps before a follower sees.
_BEFORE = 10
#: How many layers a page shows, and where it is too high for the terminal.
_LAYERS = (24, 16, 12, 8, 6, 4, 2)


def watch(opened: RunFile, chosen: ChosenRun, display: DisplayOptions) -> None:
    """Draw the page again and again until the run ends; whatever ends it, the page stays there."""
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
        page = [*heading, *terminal.page(shown, view)]
        write_output(printed(page, width=view.width, color=color), None)


def follow(opened: RunFile, heading: str | None = None) -> None:
    """Write a line for each step, finding and event as it comes."""
    shown: RunHistory | None = None
    lines = [] if heading is None else [visible(heading)]
    for history in _changing(opened, read_history(opened)):
        lines += news(history, shown, before=_BEFORE)
        if lines:
            write_output("".join(f"{line}\n" for line in lines), None)
        shown, lines = history, []


def _changing(opened: RunFile, history: RunHistory) -> Iterator[RunHistory]:
    """The run as it is now, and now, and at last as it ended."""
    while True:
        began = time.monotonic()
        yield history
        if history.run.ended is not None:
            return
        took = time.monotonic() - began
        time.sleep(max(_PAUSE, took / _SHARE - took))
        history = read_history(opened, before=history)


def _fitting(history: RunHistory, heading: list[Text], view: View, height: int) -> Text:
    """The page with as many layers as the terminal has lines for."""
    for layers in _LAYERS:
        lines = [*heading, *terminal.page(history, replace(view, top=layers))]
        if len(lines) <= height:
            return Text("\n").join(lines)
    more = f"… {plural(len(lines) - height + 1, 'line')} more: {view.command}"
    return Text("\n").join([*lines[: height - 1], Text(more, "dim")])
