"""Numbers of steps in words: ``steps 1–400``, ``1, 2, 3, 40, 80, … 1,200``."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.typeset.numbers import count

#: So many stretches, and so many single steps, are named each.
_STRETCHES, _STEPS = 4, 6


def stretches(ranges: Sequence[tuple[int, int]]) -> str:
    """``step 5``, ``steps 1–400``, ``steps 1–4, 9``; of many the first, the last, and how many."""
    if not ranges:
        return ""
    words = [count(a) if a == b else f"{count(a)}–{count(b)}" for a, b in ranges]
    if len(words) > _STRETCHES:
        many = f"… {words[-1]} ({count(len(words))} stretches)"
        words = [*words[: _STRETCHES - 1], many]
    alone = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{'step' if alone else 'steps'} {', '.join(words)}"


def listed(steps: Sequence[int]) -> str:
    """All of a few, an unbroken stretch as one, of others the first ones and the last."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{count(steps[0])}–{count(steps[-1])}"
    if len(steps) <= _STEPS:
        return ", ".join(map(count, steps))
    return f"{', '.join(map(count, steps[: _STEPS - 1]))}, … {count(steps[-1])}"
