"""Triplet losses whose arguments are exchanged, by their names in the script's text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradscope.explain.shared.frames import is_at, tree_of
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import ScriptLine

#: What a variable's name says that it is.
_ROLES = {
    "anchor": re.compile(r"(?<![a-z])(a|anc|anchors?)(?![a-z])"),
    "positive": re.compile(r"(?<![a-z])(p|pos|positives?)(?![a-z])"),
    "negative": re.compile(r"(?<![a-z])(n|neg|negatives?)(?![a-z])"),
}


class Triplets:
    """Compares the names of a triplet loss's arguments with the order of its parameters."""

    def __init__(self) -> None:
        # By line: the names in the order that they are given, if that is wrong; and how often.
        self._lines: dict[ScriptLine, tuple[tuple[str, ...], int]] = {}

    def compared(self, line: ScriptLine | None) -> None:
        """Note a line of the script that computes a triplet loss."""
        if line is not None:
            known = self._lines.get(line)
            names, count = known or (_exchanged(line), 0)
            self._lines[line] = names, count + 1

    def facts(self) -> Iterator[LoopFact]:
        """Yield a fact for each line whose arguments are exchanged."""
        for line, (names, count) in self._lines.items():
            if names:
                yield LoopFact("exchanged-triplet", count=count, words=names, location=str(line))


def _exchanged(line: ScriptLine) -> tuple[str, ...]:
    """Return the three arguments of a call on this line, if they have the names of a triplet
    and the negative is not the last; else ()."""
    tree = tree_of(line.file)
    for call in ast.walk(tree) if tree is not None else ():
        if not isinstance(call, ast.Call) or not is_at(call, line.line) or len(call.args) < 3:
            continue
        roles = [_role(one) for one in call.args[:3]]
        if set(roles) == _ROLES.keys() and roles[2] != "negative":
            return tuple(ast.unparse(one) for one in call.args[:3])
    return ()


def _role(argument: ast.expr) -> str | None:
    """Return the role that names in an expression have; None if it is none, or several."""
    names = [getattr(one, "id", None) or getattr(one, "attr", "") for one in ast.walk(argument)]
    found = {
        role
        for role, pattern in _ROLES.items()
        if any(pattern.search(name.lower()) for name in names if isinstance(name, str))
    }
    return found.pop() if len(found) == 1 else None
