"""What an explanation is made of, and how tensors and lines are said in it."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradscope.explain._meeting import Meeting, Operand
from gradscope.explain._values import Place
from gradscope.explain.frames import shown, source
from gradscope.records.errors import RelatedLine

if TYPE_CHECKING:
    from gradscope.explain._watching import Watch


@dataclass(frozen=True, slots=True)
class Case:
    """An exception to explain.

    ``met`` is what met where it began; ``watch`` is there where the run was repeated under one.
    """

    kind: str
    text: str
    failure: BaseException
    phase: str
    met: Meeting | None = None
    watch: Watch | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Sentences, the fix, the lines, and the place where the fix belongs, if not the error's."""

    details: tuple[str, ...]
    advice: str | None = None
    related: tuple[RelatedLine, ...] = field(default=())
    place: Place | None = None


Explain = Callable[[Case], Told | None]


def told(case: Case, tellers: Sequence[Explain]) -> Told | None:
    """What the first of some explanations says that has something to say."""
    for teller in tellers:
        said = teller(case)
        if said is not None:
            return said
    return None


def at(place: Place) -> str:
    """`` at net.py:19``; nothing without a line."""
    return f" at {shown(place.file)}:{place.line}" if place.file and place.line else ""


def within(place: Place) -> str:
    """`` in `block` ``: the module that a line belongs to."""
    return f" in `{place.module}`" if place.module else ""


def line(role: str, place: Place) -> tuple[RelatedLine, ...]:
    """The place as a related line, where it has one."""
    if not place.file or not place.line:
        return ()
    return (
        RelatedLine(
            role,
            shown(place.file),
            place.line,
            source(place.file, place.line),
            place.module,
            place.call,
        ),
    )


def listed(operands: Sequence[Operand]) -> str:
    """``a [2, 3], b [2, 4] and [5]``."""
    words = [one.said for one in operands]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def factors(shape: Sequence[int]) -> str:
    """``16 · 14 · 14``."""
    return " · ".join(str(n) for n in shape)


def method(text: str, call: str) -> str:
    """``x.float()`` of what the user wrote as ``x``; in parentheses where it is no single thing."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"x.{call}"
    single = isinstance(body, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{text}.{call}" if single else f"({text}).{call}"


def product(shape: Sequence[int]) -> int:
    return math.prod(shape)


def layer_name(met: Meeting) -> str:
    """The layer's name, or its class where it has none."""
    return met.name if met.name is not None else type(met.layer).__name__


def given_as(met: Meeting, given: Operand) -> str:
    """``the input `x` [2, 3]``: by what the user wrote, if it is one thing."""
    word = met.argument
    return f"the input{f' `{word}`' if word else ''} {list(given.shape)}"
