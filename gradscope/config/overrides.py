"""Applies changes to a config file's data (arguments, environment), and knows the place of each
value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gradscope import references
from gradscope.config.targets import SPELLINGS
from gradscope.config.words import Complaint, Path, Text, describe, dotted, shorten, visible
from gradscope.config.yaml12 import DEEPEST, Document, parse, scalar
from gradscope.errors import ConfigError, Place, Problem, did_you_mean


@dataclass(frozen=True, slots=True)
class Argument:
    """One ``key=value``; with ``document`` None, the MODEL of the command line."""

    key: str
    text: Text
    document: Document | None = None
    path: Path = ()

    def place(self, key: str, *, of_key: bool) -> Place | None:
        """Return the place of ``key`` in this argument, if the argument sets it or one of its
        parents."""
        mine = dotted(self.path) if self.path else self.key
        if mine != key and not key.startswith(f"{mine}."):
            return None
        inner = key[len(mine) + 1 :].split(".") if key != mine else []
        if self.document is not None and (inner or not of_key):
            node, _ = self.document.find(inner, key=of_key)
            if node is not None:
                return _named(self.document.place(node), key)
        return self.own_place(key, of_key=of_key)

    def own_place(self, key: str, *, of_key: bool = True) -> Place:
        """Return the place of the argument's key, or of its last parts that ``key`` ends with."""
        if self.document is None:
            return self.text.place(0, 0, len(self.text.lines[0]), key)
        start, length = 0, len(self.key)
        if of_key and (self.key == key or self.key.startswith(f"{key}.")):
            start = key.rfind(".") + 1
            length = len(key) - start
        return self.text.place(0, start - self.text.indent, length, key)


@dataclass(frozen=True, slots=True)
class Origins:
    """The layers of a config: file, arguments, flags; the last one wins."""

    file: Document | None = None
    arguments: list[Argument] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)

    def typed(self, key: str) -> bool:
        """Return True if the value of the dotted ``key`` comes from the command line, not a
        file."""
        return any(
            key == given or key.startswith(f"{given}.")
            for argument in self.arguments
            for given in [dotted(argument.path) if argument.path else argument.key]
        )

    def place(self, key: str, *, of_key: bool = False) -> Place | None:
        """Return the place of the dotted ``key`` or its nearest parent; None for a default."""
        for name in self.options:
            if name == "interventions":
                continue  # flags add to the file's list, and report their own mistakes
            if key == name or key.startswith(f"{name}."):
                value = self.options[name]
                text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                return Place(f"--{name.replace('_', '-')} {shorten(text)}", key=visible(key))
        for argument in reversed(self.arguments):
            place = argument.place(key, of_key=of_key)
            if place is not None:
                return place
        if self.file is not None and self.file.root is not None:
            node, used = self.file.find(key.split("."), key=of_key)
            added = key.startswith("interventions.") and used < 2
            if used and node is not None and not added:
                return _named(self.file.place(node), key)
        for argument in reversed(self.arguments):
            if argument.key.startswith(f"{key}."):
                return argument.own_place(key)
        return None


def _named(place: Place, key: str) -> Place:
    return replace(place, key=visible(key))


_FORM: Final = re.compile(r"([a-z_][\w.]*)=", re.ASCII)

#: Keys whose text names an object: an argument below turns the text into a call of it.
_CALLABLE: Final = ("model", "loss", "optimizer")
_PATTERNS: Final = ("layers", "freeze", "eval_modules")
_TARGET_KEYS: Final = (*SPELLINGS, "_args_", "_partial_", "init_args")


@dataclass(frozen=True, slots=True)
class Override:
    """One argument, parsed."""

    argument: Argument
    value: Any


def parse_override(argument: str, number: int) -> Override | list[Problem]:
    """Return the command line's ``number``-th argument as an override, or its problems."""
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
    """Return the mapping that takes the argument: ``init_args`` in the ``class_path`` spelling."""
    if "class_path" in node and part not in ("class_path", "init_args"):
        arguments = node.setdefault("init_args", {})
        if isinstance(arguments, dict):
            return arguments
    return node


def _index(node: list[Any], part: str) -> int | None:
    return int(part) if part.isdecimal() and len(part) < 9 and int(part) < len(node) else None


def _step(node: dict[str, Any], parts: Sequence[str], path: Path) -> tuple[str, int]:
    """Return the key of ``node`` that the next parts name, and the number of these parts: keys may
    contain dots."""
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if name in node:
            return name, length
    if path == ("replace",):  # its keys are the names of modules
        length = next((i for i, part in enumerate(parts) if part in _TARGET_KEYS), len(parts))
        return ".".join(parts[: max(length, 1)]), max(length, 1)
    return parts[0], 1


def _container(child: Any, path: Path, parts: Sequence[str]) -> dict[str, Any] | list[Any] | None:
    """Return the value at ``path`` as a container for the next part; None if it cannot be one."""
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


#: ``$${`` is a literal ``${``; then a full interpolation; then one that never ends.
_TOKEN: Final = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?:,(.*))?\Z", re.DOTALL)
_USAGE: Final = "write `${env:NAME}` or `${env:NAME,default}`; `$${` is a literal `${`"


def interpolate(value: Any) -> tuple[Any, list[Complaint]]:
    """Return ``value`` with the environment's values in its texts, and complaints.

    A text that is a single interpolation becomes its value as YAML: a number, a
    truth value, null. Interpolations inside an inserted value are not resolved.
    """
    complaints: list[Complaint] = []
    return _walk(value, (), complaints), complaints


def _walk(value: Any, path: Path, complaints: list[Complaint]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(item, (*path, key), complaints) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, (*path, index), complaints) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    count = len(complaints)

    def put(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        found = _look_up(match[1], match[0], path)
        if isinstance(found, Complaint):
            complaints.append(found)
            return match[0]
        return found

    text = _TOKEN.sub(put, value)
    single = _TOKEN.fullmatch(value)
    if single and single[1] is not None and len(complaints) == count:
        return scalar(text)
    return text


def _look_up(inner: str | None, written: str, path: Path) -> str | Complaint:
    match = _NAME.match(inner) if inner is not None else None
    if match is None:
        fault = "an interpolation that never ends" if inner is None else "not an interpolation"
        return Complaint(path, f"`{shorten(written)}` is {fault}", _USAGE)
    name, default = match[1], match[2]
    text = os.environ.get(name, default)
    if text is None:
        help = did_you_mean(name, os.environ)
        return Complaint(
            path,
            f"the environment variable `{name}` is not set",
            help or f"set it, or give a default: `${{env:{name},default}}`",
        )
    if name in os.environ:
        references.note(text, written)
    if re.search("[\0\ud800-\udfff]", text):
        help = f"set it anew: export {name}=…"
        return Complaint(path, f"the environment variable `{name}` is not UTF-8 text", help)
    return text
