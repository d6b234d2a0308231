"""A run's page in the browser: ``show RUN --serve`` and ``live RUN --web``."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradscope import plugins
from gradscope.commands._options import DisplayOptions, FileOptions, LayerOptions, TableOptions
from gradscope.commands._views import choose_destination, table_view
from gradscope.commands._write import say, write_output
from gradscope.errors import OptionError
from gradscope.pages import Page
from gradscope.records.training import RunHistory
from gradscope.reporters.run import selected, steps
from gradscope.reporters.views import View
from gradscope.runfile.folder import ChosenRun, file_of
from gradscope.runfile.reader import RunFile

ROOM = "gradscope.reporters.training"


def serve(
    path: Path,
    view: View,
    patterns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    *,
    opens: bool,
) -> None:
    """Print the page's address and serve it until Ctrl-C.

    Args:
        path: the run's file or folder.
        view, patterns, exclude: the content of the page.
        opens: open it in a graphical browser, if there is one.

    Raises:
        OptionError: no port is free.
    """
    from gradscope.api.run_server import RunServer

    html = plugins.load(ROOM, "html")

    def page(history: RunHistory) -> Page:
        made: Page = html.page(selected(history, patterns, exclude), view)
        return made

    try:
        server = RunServer(path, page)
    except OSError as error:
        raise OptionError(f"no port is free on 127.0.0.1: {error.strerror or error}") from None
    with server:
        write_output(f"{server.address}\n", None)
        say("only this machine can open it, and it changes nothing; Ctrl-C ends")
        if opens and _has_windows():
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # how one leaves
            server.ending.set()


def serve_chosen(
    chosen: ChosenRun | None,
    rank: int | None,
    given: Mapping[str, object],
    display: DisplayOptions,
    tables: TableOptions,
    layers: LayerOptions,
) -> None:
    """Serve the run that ``show`` has found.

    Args:
        chosen: the run; None for a report.
        rank: show this rank alone.
        given: options that exclude ``--serve``.
        display, tables, layers: the content of the page.

    Raises:
        OptionError: it is not a run, or an excluded option is given.
        ConfigError: the run does not exist.
    """
    if chosen is None:
        raise OptionError("`--serve` is for a run", help="`-o report.html` makes a report's page")
    for name, value in given.items():
        if value:
            raise OptionError(f"`--serve` and `{name}` do not go together")
    destination = choose_destination("html", FileOptions(), display, ROOM, chosen.heading)
    view = table_view(destination, tables)
    steps.check(view)
    path = file_of(chosen.path, rank)
    with RunFile.open(path):  # its errors are raised before anything is served
        pass
    if chosen.heading is not None:
        say(chosen.heading)
    serve(path, view, layers.layers or (), layers.exclude or (), opens=False)


def _has_windows() -> bool:
    """Return True if there is a graphical display; a text browser would replace this command in the
    terminal."""
    shown = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return sys.stdout.isatty() and (sys.platform in ("darwin", "win32") or shown)
