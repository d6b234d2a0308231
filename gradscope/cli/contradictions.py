"""``--seed 1 --seed 2``: an option that takes one value was given two. The last must not win."""

from __future__ import annotations

from functools import partial
from typing import Any

from gradscope.errors import OptionError


def refuse_contradictions(parser: Any) -> None:
    """Have a parser refuse a second value of an option that takes one; the same again is fine."""
    seen: dict[str, tuple[str, Any]] = {}
    for option in {*parser._short_opt.values(), *parser._long_opt.values()}:
        if option.action in ("store", "store_const"):
            option.process = partial(_once, option, option.process, seen)


def _once(
    option: Any, process: Any, seen: dict[str, tuple[str, Any]], value: Any, state: Any
) -> None:
    flag = option.action == "store_const"
    given = option.const if flag else value
    name = (option._long_opts or option._short_opts)[0]
    message = name if flag else f"{name} {value}"
    earlier, before = seen.setdefault(option.dest, (message, given))
    if before != given:
        raise OptionError(
            f"`{earlier}` and `{message}` contradict each other", help="give one of them"
        )
    process(value, state)
