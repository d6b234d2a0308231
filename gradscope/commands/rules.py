"""``gradscope rules``: the rule book, or one rule's documentation."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope import plugins
from gradscope.commands._options import Debug, DisplayOptions, takes_groups
from gradscope.commands._views import choose_format, text_view
from gradscope.commands._write import write_output
from gradscope.rules import lookup, rule_book

ROOM = "gradscope.reporters.rulebook"


@takes_groups
def run(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A rule's code or name; none lists them all."),
    ] = None,
    *,
    format: Annotated[
        str, typer.Option("-f", "--format", metavar="FORMAT", help="terminal or json.")
    ] = "terminal",
    display: DisplayOptions,
    debug: Debug = False,
) -> None:
    """List the rules, or explain one: what it looks for, why it matters, how to fix it.

    Thresholds are shown with those of each preset, and where they come from.
    """
    view = text_view(display)
    reporter = plugins.load(ROOM, choose_format(format, None, ROOM))
    rules = rule_book() if code is None else (lookup(code),)
    write_output(reporter.render(rules, view), None)
