"""``gradscope rules``: the rule book, or one rule's documentation."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gradscope.commands._model import Debug
from gradscope.commands._rulebook import book, page
from gradscope.commands._views import Color, Width, check_look, terminal_width, use_color
from gradscope.commands._write import write_output
from gradscope.errors import OptionError, did_you_mean
from gradscope.records.json import to_data
from gradscope.rules import Rule, lookup, rule_book

_FORMATS = ("terminal", "json")


def run(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A rule's code or name; none lists them all."),
    ] = None,
    format: Annotated[
        str, typer.Option("-f", "--format", metavar="FORMAT", help="terminal or json.")
    ] = "terminal",
    color: Color = "auto",
    width: Width = None,
    debug: Debug = False,
) -> None:
    """List the rules, or explain one: what it looks for, why it matters, how to fix it.

    Thresholds are shown with those of each preset, and where they come from.
    """
    if format not in _FORMATS:
        help = did_you_mean(format, _FORMATS) or f"one of {', '.join(_FORMATS)}"
        raise OptionError(f"unknown format `{format}`", help=help)
    check_look(color, width)
    rules = rule_book() if code is None else (lookup(code),)
    if format == "json":
        data = {"schema": "gradscope.rules/1", "rules": [_data(rule) for rule in rules]}
        write_output(json.dumps(data, indent=1, ensure_ascii=False) + "\n", None)
        return
    room, colored = terminal_width(None, width), use_color(None, color)
    if code is None:
        write_output(book(rules, width=room, color=colored), None)
    else:
        write_output(page(rules[0], width=room, color=colored), None)


def _data(rule: Rule) -> Any:
    data = to_data(rule)
    for threshold, record in zip(data["thresholds"], rule.thresholds, strict=True):
        threshold["presets"] = dict(record.presets)
    return data
