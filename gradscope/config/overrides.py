"""``key=value`` arguments: a dotted key, a value in YAML, put into the config's data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gradscope.config.origins import Argument
from gradscope.config.targets import SPELLINGS
from gradscope.config.texts import Text
from gradscope.config.words import Complaint, Path, describe, dotted, shorten
from gradscope.config.yaml12 import DEEPEST, parse
from gradscope.errors import ConfigError, Problem

_FORM: Final = re.compile(r"([a-z_][\w.]*)=", re.ASCII)

#: Keys whose text names an object: an argument below turns the text into a call of it.
_CALLABLE: Final = ("model", "loss", "optimizer")
_PATTERNS: Final = ("layers", "freeze")
_TARGET_KEYS: Final = (*SPELLINGS, "_args_", "_partial_", "init_args")


@dataclass(frozen=True, slots=True)
class Override:
    """One argument, parsed."""

    argument: Argument
    value: Any


def parse_override(argument: str, number: int) -> Override | list[Problem]:
    """The command line's ``number``-th argument as an override, or what is wrong with it."""
    match = _FORM.match(argument)
    key = match[1] if match else ""
    if match is None or not all(key.split(".")):
        text = Text.of_argument(argument, number)
        help = "write `key=value`, as in `steps=3` or `backward.repeats=2`"
        word = shorten(argument.partition("=")[0])
        place = text.place(0, 0, len(word))
        return [Problem(f"`{word}` is not the key of an override", place, help)]
    if key.count(".") >= DEEPEST:
        place = Text.of_argument(argument, number).place(0, 0, len(key))
        return [Problem(f"a key of more than {DEEPEST} parts", place)]
    body = argument[match.end() :]
    text = Text.of_argument(argument, number, indent=match.end())
    if key.partition(".")[0] in _PATTERNS and body[:1] in ("*", "!"):
        return Override(Argument(key, text, parse(text, "null")), body)  # a pattern, not YAML
    try:
        document = parse(text, body)
    except ConfigError as error:
        return [_keyed(problem, key) for problem in error.problems]
    if document.problems:
        return [_keyed(problem, key) for problem in document.problems]
    return Override(Argument(key, text, document), document.data)


def assign(data: dict[str, Any], override: Override) -> Argument | Complaint:
    """Put an override's value into ``data``; the argument then knows the path that it went to."""
    parts = override.argument.key.split(".")
    node: Any = data
    path: Path = ()
    while True:
        if isinstance(node, list):
            step: str | int | None = _index(node, parts[0])
            taken = 1
            if step is None:
                message = f"`{dotted(path)}` is a list of {len(node)}: it has no `{parts[0]}`"
                return Complaint(
                    path, message, f"count from 0 to {len(node) - 1}" if node else None
                )
        else:
            node = _inner(node, parts[0])
            step, taken = _step(node, parts, path)
        path, parts = (*path, step), parts[taken:]
        if not parts:
            node[step] = override.value
            return replace(override.argument, path=path)
        child = _container(_child(node, step), path, parts)
        if child is None:
            value = _child(node, step)
            what = "not set" if value is None else describe(value)
            message = f"`{dotted(path)}` is {what}: `{dotted((*path, *parts))}` cannot be set"
            return Complaint(path, message, f"set all of it: `{dotted(path)}=…`")
        node[step] = child
        node = child


def _child(node: Any, step: str | int) -> Any:
    return node.get(step) if isinstance(node, dict) else node[step]


def _inner(node: dict[str, Any], part: str) -> dict[str, Any]:
    """Where an argument goes: below ``init_args`` in the spelling that keeps them there."""
    if "class_path" in node and part not in ("class_path", "init_args"):
        arguments = node.setdefault("init_args", {})
        if isinstance(arguments, dict):
            return arguments
    return node


def _index(node: list[Any], part: str) -> int | None:
    return int(part) if part.isdecimal() and len(part) < 9 and int(part) < len(node) else None


def _step(node: dict[str, Any], parts: Sequence[str], path: Path) -> tuple[str, int]:
    """The key of ``node`` that the next parts name, and how many they are: keys may hold dots."""
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if name in node:
            return name, length
    if path == ("replace",):  # its keys are the names of modules
        length = next((i for i, part in enumerate(parts) if part in _TARGET_KEYS), len(parts))
        return ".".join(parts[: max(length, 1)]), max(length, 1)
    return parts[0], 1


def _container(child: Any, path: Path, parts: Sequence[str]) -> dict[str, Any] | list[Any] | None:
    """What is at ``path``, made to take the next part; None if it cannot."""
    if isinstance(child, dict | list):
        return child
    if child is None:
        return None if parts[0].isdecimal() and path[0] != "replace" else {}
    called = path[0] == "replace" if len(path) == 2 else len(path) == 1 and path[0] in _CALLABLE
    if isinstance(child, str) and called:
        return {} if parts[0] in SPELLINGS else {"_target_": child}
    return None


def _keyed(problem: Problem, key: str) -> Problem:
    place = problem.place and replace(problem.place, key=key)
    return replace(problem, place=place)
