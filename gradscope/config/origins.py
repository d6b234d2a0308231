"""The origin of each value of a config: the file, an argument ``key=value``, or a flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradscope.config.nodes import Document
from gradscope.config.texts import Text, visible
from gradscope.config.words import Path, dotted, shorten
from gradscope.errors import Place


@dataclass(frozen=True, slots=True)
class Argument:
    """One ``key=value`` (or, with ``document`` None, the MODEL that the command line named)."""

    key: str
    text: Text
    document: Document | None = None
    path: Path = ()

    def place(self, key: str, *, of_key: bool) -> Place | None:
        """The place of ``key`` in this argument, if the argument gave it, or one of its parents."""
        mine = dotted(self.path) if self.path else self.key
        if mine != key and not key.startswith(f"{mine}."):
            return None
        inner = key[len(mine) + 1 :].split(".") if key != mine else []
        if self.document is not None and (inner or not of_key):
            node, _ = self.document.find(inner, key=of_key)
            if node is not None:
                return _named(self.document.place(node), key)
        return self.integer(key, of_key=of_key)

    def integer(self, key: str, *, of_key: bool = True) -> Place:
        """The place of the argument's key, or of that part of it which ``key`` ends with."""
        if self.document is None:
            return self.text.place(0, 0, len(self.text.lines[0]), key)
        start, length = 0, len(self.key)
        if of_key and (self.key == key or self.key.startswith(f"{key}.")):
            start = key.rfind(".") + 1
            length = len(key) - start
        return self.text.place(0, start - self.text.indent, length, key)


@dataclass(frozen=True, slots=True)
class Origins:
    """The layers of a config, the last said winning: file, arguments, flags."""

    file: Document | None = None
    arguments: list[Argument] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)

    def typed(self, key: str) -> bool:
        """Whether the value of the dotted ``key`` is on the command line, and in no file."""
        return any(
            key == given or key.startswith(f"{given}.")
            for argument in self.arguments
            for given in [dotted(argument.path) if argument.path else argument.key]
        )

    def place(self, key: str, *, of_key: bool = False) -> Place | None:
        """Where the dotted ``key`` or its nearest parent was given; None for a default."""
        for name in self.options:
            if name == "interventions":
                continue  # flags add to the file's list: what is wrong with one it says itself
            if key == name or key.startswith(f"{name}."):
                return Place(
                    f"--{name.replace('_', '-')} {_flag(self.options[name])}", key=visible(key)
                )
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
                return argument.integer(key)
        return None


def _named(place: Place, key: str) -> Place:
    return replace(place, key=visible(key))


def _flag(value: Any) -> str:
    return shorten(" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
