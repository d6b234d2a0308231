"""Reads the keys of ``--scale``: config keys whose values change with the width of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gradscope.config.words import Text, shorten
from gradscope.config.yaml12 import parse
from gradscope.errors import ConfigError, OptionError

_FORM = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_EXAMPLE = "as in `--scale width=64,128,256`"


def parse_scales(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each key. ``width=64,128`` has two values,
    ``input.shape=[2,64],[2,128]`` too.

    Raises:
        OptionError: a word is not a key with values, or a key is given twice.
    """
    found: dict[str, list[Any]] = {}
    for word in words:
        key, sign, body = word.partition("=")
        if not sign or not _FORM.fullmatch(key):
            raise OptionError(f"`--scale {shorten(word)}` is not KEY=VALUES", help=_EXAMPLE)
        if key in found:
            raise OptionError(f"`--scale {key}=` is given twice", help="give one list of values")
        found[key] = _values(word, body)
    return found


def _values(word: str, body: str) -> list[Any]:
    try:
        document = parse(Text.of_argument(word, 1), f"[{body}]")
        problems = tuple(document.problems)
    except ConfigError as error:
        problems = error.problems
    if problems or not isinstance(document.data, list):
        problem = f": {problems[0].message}" if problems else " has no values"
        raise OptionError(f"`--scale {shorten(word)}`{problem}", help=_EXAMPLE)
    return document.data


def widths_of(scales: Mapping[str, Sequence[Any]]) -> tuple[float, ...]:
    """Return the checked values of the first key; all keys have equally many.

    Raises:
        OptionError: there is no key, there are fewer than two widths, the widths are not increasing
            positive numbers, or another key has another number of values.
    """
    if not scales:
        raise OptionError("nothing to scale", help=f"name the width, {_EXAMPLE}")
    (first, widths), *others = scales.items()
    if len(widths) < 2:
        raise OptionError(f"`--scale {first}` needs two or more widths", help=_EXAMPLE)
    numbers = [w for w in widths if isinstance(w, int | float) and not isinstance(w, bool)]
    rising = all(a < b for a, b in pairwise(numbers))
    if len(numbers) < len(widths) or not rising or numbers[0] <= 0:
        raise OptionError(
            f"`--scale {first}`: widths are positive numbers in increasing order",
            help="keys that change with the width follow in a `--scale` of their own",
        )
    for key, values in others:
        if len(values) != len(widths):
            raise OptionError(
                f"`--scale {key}` has {len(values)} values, `{first}` has {len(widths)}",
                help="give a value for each width",
            )
    return tuple(numbers)


def full_key(key: str, model: str | Mapping[str, Any]) -> str:
    """Return a dotted key unchanged; a name alone is an argument of the model, or of an object in
    it.

    Raises:
        OptionError: several objects in the model have an argument of that name.
    """
    if "." in key:
        return key
    places = [path for path in _paths(model, "model") if path.rpartition(".")[2] == key]
    if f"model.{key}" in places or not places:
        return f"model.{key}"
    if len(places) > 1:
        raise OptionError(
            f"`{key}` is in the config {len(places)} times",
            help=f"name one in full: {', '.join(f'`{place}`' for place in places)}",
        )
    return places[0]


def overrides_at(scales: Mapping[str, Sequence[Any]], position: int) -> list[str]:
    """Return ``key=value`` of each key at a width, counted from 0."""
    return [f"{key}={json.dumps(values[position])}" for key, values in scales.items()]


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}.{key}"
            yield from _paths(item, f"{path}.{key}")
