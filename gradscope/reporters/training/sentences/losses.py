"""Which backwards a step's loss is the sum of."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.training import TrainingStep
from gradscope.typeset.numbers import count


def backwards_of(step: TrainingStep) -> str:
    """``sum of 4 backwards``, ``backward 1 of 20``; nothing for a step of one backward."""
    number = len(step.losses)
    if number < 2:
        return ""
    if step.summed is None:
        return f"sum of {count(number)} backwards"
    first, end = step.summed
    if end - first == 1:
        return f"backward {count(end)} of {count(number)}"
    return f"sum of backwards {count(first + 1)} to {count(end)} of {count(number)}"


def backwards_over(steps: Sequence[TrainingStep]) -> str:
    """The same of many steps; nothing where each has one backward."""
    having = [step for step in steps if step.losses]
    notes = {backwards_of(step) for step in having}
    if len(notes) < 2:
        return notes.pop() if notes else ""
    numbers = sorted(len(step.summed_losses) for step in having)
    ends = " to ".join(dict.fromkeys(map(count, (numbers[0], numbers[-1]))))
    if any(step.summed for step in having):
        return f"{ends} of up to {count(max(len(step.losses) for step in having))} backwards"
    return f"sum of {ends} backwards"
