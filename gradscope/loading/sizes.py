"""The largest number of layers that a config may request: more would take hours to build."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradscope.errors import ConfigError, Place

#: What an integer counts, by the name that it has, and how many are built in a few minutes.
_MOST = (
    (re.compile(r"layer|depth|block|stack|repeat"), 10_000, "layers"),
    (re.compile(r"num_labels"), 1_000_000, "labels"),
)


def check_sizes(name: str, arguments: Mapping[str, Any], place: Place | None) -> None:
    """Refuse arguments, or a config's fields, that ask for more than can be built.

    Raises:
        ConfigError: says which.
    """
    for argument, count in _numbers(arguments):
        for pattern, most, what in _MOST:
            if count > most and pattern.search(argument):
                raise ConfigError(
                    f"`{argument}: {count}` of `{name}` is more than {most} {what}",
                    place=place,
                    help="ask for fewer",
                )


def _numbers(arguments: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Each full number in a mapping, under the name that says what it is."""
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        else:
            numbers = value if isinstance(value, (list, tuple)) else [value]
            yield from ((str(key), number) for number in numbers if type(number) is int)
