"""Aligns the calls and parameters of two models: finds the counterpart in A of each in B."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TypeVar

from gradscope.errors import OptionError
from gradscope.patterns import PATIENCE, at_most

#: A call by its module's name and its number.
CallKey = tuple[str, int]
_Key = TypeVar("_Key", bound=Hashable)
#: Texts that a star in a name can match.
_STARS = {"*": "([^.]*)", "**": "(.*)"}


@dataclass(frozen=True, slots=True)
class Renaming:
    """``A=B``: a pattern of A's names, and of B's names; `*` stands for the same text in both."""

    text: str
    _b: re.Pattern[str] = field(init=False)
    _a: str = field(init=False)

    def __post_init__(self) -> None:
        a, equals, b = self.text.partition("=")
        if not equals or re.findall(r"\*+", a) != re.findall(r"\*+", b):
            raise OptionError(
                f"`--match {self.text}` does not map names",
                help="write A's pattern, `=` and B's, with the same stars: "
                "`--match 'encoder.*.fc=layers.*.linear'`",
            )
        parts = re.split(r"(\*\*?)", b)
        regex = "".join(_STARS.get(part, re.escape(part)) for part in parts)
        object.__setattr__(self, "_b", re.compile(regex))
        object.__setattr__(self, "_a", a)

    def of(self, name: str) -> str | None:
        """Return A's name for one of B's, also for submodules of a renamed module.

        Raises:
            OptionError: the match takes too long.
        """
        ends = [len(name), *(i for i in range(len(name) - 1, 0, -1) if name[i] == ".")]
        try:
            with at_most(PATIENCE):
                matches = ((end, self._b.fullmatch(name[:end])) for end in ends)
                found = next(((end, match) for end, match in matches if match), None)
        except TimeoutError:
            message = f"`--match {self.text}` takes longer than {PATIENCE:g} s for one name"
            raise OptionError(message, help="use fewer stars in one pattern") from None
        if found is None:
            return None
        end, match = found
        return "".join(self._filled(match.groups())) + name[end:]

    def _filled(self, groups: Sequence[str]) -> Iterator[str]:
        """Yield A's pattern with the texts that B's stars matched."""
        left = iter(groups)
        for part in re.split(r"(\*\*?)", self._a):
            yield next(left) if part in _STARS else part


def align_calls(
    a: Mapping[CallKey, Hashable],
    b: Mapping[CallKey, Hashable],
    renamings: Sequence[Renaming] = (),
) -> dict[CallKey, CallKey]:
    """Align A's calls with B's: by ``renamings``, else by name; the rest by order and shape.

    ``a`` and ``b`` have the features of each call; calls with equal features may match.
    """
    named = {call: (_renamed(call[0], renamings), call[1]) for call in b}
    found = {call: known for call, known in named.items() if known in a}
    shapes = [
        {key: alike for key, alike in calls.items() if key not in aligned}
        for calls, aligned in ((a, {*found.values()}), (b, {*found}))
    ]
    return found | _by_order(*shapes)


def align_parameters(
    a: Mapping[str, tuple[int, ...]],
    b: Mapping[str, tuple[int, ...]],
    renamings: Sequence[Renaming] = (),
) -> dict[str, str]:
    """Align parameters in the same way, with equal shapes; return A's names by B's.

    Raises:
        OptionError: a renaming matches none.
    """
    for renaming in renamings:
        if not any(renaming.of(name) in a for name in b):
            raise OptionError(
                f"`--match {renaming.text}` fits no parameter of both",
                help="`gradscope layers MODEL` lists the names of each",
            )
    named = {name: _renamed(name, renamings) for name in b}
    found = {name: known for name, known in named.items() if a.get(known) == b[name]}
    others = [
        {name: shape for name, shape in shapes.items() if name not in aligned}
        for shapes, aligned in ((a, {*found.values()}), (b, {*found}))
    ]
    return found | _by_order(*others)


def _renamed(name: str, renamings: Sequence[Renaming]) -> str:
    return next((known for one in renamings if (known := one.of(name)) is not None), name)


def _by_order(a: Mapping[_Key, Hashable], b: Mapping[_Key, Hashable]) -> dict[_Key, _Key]:
    """Return A's by B's, if the signatures are equal in the same order."""
    keys_a, keys_b = list(a), list(b)
    matcher = SequenceMatcher(None, list(a.values()), list(b.values()), autojunk=False)
    return {
        keys_b[block.b + i]: keys_a[block.a + i]
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }
