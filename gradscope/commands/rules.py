"""``gradscope rules``: the rule book, or one rule's documentation."""

from __future__ import annotations

from typing import Annotated

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._options import (
    DisplayOptions,
    MaxTokens,
    argument,
    format_option,
    takes_groups,
)
from gradscope.commands._views import check_max_tokens, choose_format, fitted, text_view
from gradscope.commands._write import write_output
from gradscope.rules import documented, explained

ROOM = "gradscope.reporters.rulebook"

EXAMPLES = (
    ("gradscope rules", "All rules, a line each."),
    ("gradscope rules GS101", "One rule: its check, its thresholds, their sources."),
)


@takes_groups
def run(
    code: Annotated[
        str | None,
        argument("CODE", "A rule's code or name; none lists them all.", complete=completing.rules),
    ] = None,
    *,
    format: Annotated[str, format_option(ROOM, "terminal or json.")] = "terminal",
    max_tokens: MaxTokens = None,
    display: DisplayOptions,
) -> None:
    """List the rules, or explain one: its check, its reason, its fix.

    GS rules judge a model or a training run; GD rules judge a `gradscope diff`. Thresholds are
    shown with their presets and their sources.

    A rule of your own is one file in a clone: see "A rule" in `docs/architecture.md`.
    """
    view = text_view(display)
    reporter = plugins.load(ROOM, choose_format(format, None, ROOM))
    check_max_tokens(max_tokens, format)
    rules = documented() if code is None else (explained(code),)
    write_output(fitted(reporter.render(rules, view), max_tokens), None)
