"""Settings of rules: choice and thresholds, from the config's key ``rules`` and options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Place,
    Problem,
    Where,
    did_you_mean,
    nowhere,
    refuse_unknown,
)
from gradscope.rules._book import Entry, chosen, entries, lookup
from gradscope.rules._rule import PRESETS, Limits
from gradscope.rules._severity import SEVERITIES

FAIL_ON = (*SEVERITIES, "never")


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Choice of rules. ``thresholds`` are numbers by code and name, on top of the preset's.

    ``select`` and ``ignore`` hold codes, beginnings of codes, or names; an empty ``select`` is all.
    ``fail_on`` None is left to the command.
    """

    preset: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fail_on: str | None = None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any] | None = None,
        place: Where = nowhere,
        *,
        preset: str | None = None,
        select: Sequence[str] | str = (),
        ignore: Sequence[str] | str = (),
        fail_on: str | None = None,
    ) -> RuleSettings:
        """Return the settings from the config's ``rules`` (its data, checked for types) and
        options, which win.

        An ``ignore`` option adds to the config's; every other option replaces the config's. A
        single word counts as a list.

        Raises:
            ConfigError: codes, names or thresholds of the config that no rule has, with the lines.
                OptionError: the same for an option, or an unknown preset or severity.
        """
        sentence = dict(config or {})
        problems = list(_problems(sentence, place))
        if problems:
            raise ConfigError(*problems)
        select = (select,) if isinstance(select, str) else select
        ignore = (ignore,) if isinstance(ignore, str) else ignore
        if preset is not None:
            refuse_unknown("preset", preset, PRESETS)
        if fail_on is not None:
            refuse_unknown("severity", fail_on, FAIL_ON)
        for word in (*select, *ignore):
            chosen(word)
        return cls(
            preset=preset or sentence.get("preset"),
            select=tuple(select or sentence.get("select") or ()),
            ignore=(*(sentence.get("ignore") or ()), *ignore),
            thresholds={
                lookup(word).code: dict(values)
                for word, values in (sentence.get("thresholds") or {}).items()
            },
            fail_on=fail_on or sentence.get("fail_on"),
        )

    def active(self) -> Iterator[tuple[Entry, Limits]]:
        """Yield the active rules, each with its limits."""
        taken = frozenset[str]().union(*map(chosen, self.select))
        left = frozenset[str]().union(*map(chosen, self.ignore))
        for entry in entries():
            code = entry.rule.code
            asked = code in taken or not (self.select or entry.rule.on_demand)
            if asked and code not in left:
                yield entry, entry.rule.limits(self.preset, self.thresholds.get(code))


def _problems(sentence: Mapping[str, Any], place: Where) -> Iterator[Problem]:
    for key in ("select", "ignore"):
        for index, word in enumerate(sentence.get(key) or ()):
            yield from _unknown(chosen, word, place(f"rules.{key}.{index}"))
    for word, values in (sentence.get("thresholds") or {}).items():
        where = f"rules.thresholds.{word}"
        unknown = list(_unknown(lookup, word, place(where, of_key=True)))
        yield from unknown or _wrong_thresholds(word, values, where, place)


def _wrong_thresholds(
    word: str, values: Mapping[str, Any], where: str, place: Where
) -> Iterator[Problem]:
    rule = lookup(word)
    names = [threshold.name for threshold in rule.thresholds]
    old_names = {threshold.old_name for threshold in rule.thresholds}
    for name, value in values.items():
        if name not in names and name not in old_names:
            help = f"it has {', '.join(names)}" if names else "it has no thresholds"
            yield Problem(
                f"{rule.code} has no threshold `{name}`",
                place(f"{where}.{name}", of_key=True),
                did_you_mean(name, names) or help,
            )
        elif not _is_number(value):
            sentence = (
                f"the threshold `{name}` of {rule.code} is {value!r}, and must be a number from 0"
            )
            yield Problem(sentence, place(f"{where}.{name}"))


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and value >= 0


def _unknown(read: Callable[[str], object], word: str, place: Place | None) -> Iterator[Problem]:
    try:
        read(word)
    except GradscopeError as error:
        for problem in error.problems:
            yield Problem(problem.message, place, problem.help)
