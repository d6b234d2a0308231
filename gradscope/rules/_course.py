"""Keeps the course of a loss since the run began, in a fixed number of values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradscope.records.loop_figures import Course
from gradscope.rules._rule import Limits

#: The number of steps in a block at first; the number of blocks above which pairs are joined; the
#: number of blocks that a course needs.
_BLOCK, _BLOCKS, _FEWEST = 16, 64, 16
#: The square of a larger number overflows a float.
_LARGEST = 1e150


@dataclass(slots=True)
class Block:
    """A block of steps in a row: the first and the last step, and the mean and the spread of the
    loss."""

    first: int
    last: int
    count: int
    mean: float
    #: Sum of squared differences from the mean.
    squares: float

    def add(self, step: int, value: float) -> None:
        """Add one step (Welford)."""
        self.last, self.count = step, self.count + 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)

    def joined(self, other: Block) -> Block:
        """Return both blocks as one."""
        count = self.count + other.count
        difference = other.mean - self.mean
        return Block(
            self.first,
            other.last,
            count,
            self.mean + difference * other.count / count,
            self.squares + other.squares + difference**2 * self.count * other.count / count,
        )


def stopped_early(course: Course, limits: Limits) -> bool:
    """Return True if a loss stopped falling close to its start.

    The rule's limits "left", "noise" and "errors" decide.
    """
    if not is_left(course, limits["left"]) or course.spread > limits["noise"] * course.last:
        return False
    return course.middle - course.last <= limits["errors"] * course.error


def is_left(course: Course, share: float) -> bool:
    """Return True if more than a share of a positive loss is left at the end."""
    return course.first > 0 and course.lowest > 0 and course.last >= share * course.first


def fell(course: Course | None, share: float) -> bool:
    """Return True if a loss ended below a share of its start."""
    return course is not None and course.last < share * course.first


def until_course(steps: float) -> int:
    """Return the number of losses after which a course of so many steps exists."""
    size = _BLOCK
    while True:
        for blocks in range(_FEWEST, _BLOCKS):
            if 2 * (blocks // 4) * size >= steps:
                return blocks * size + 1
        size *= 2


class Blocks:
    """Blocks of equally many steps; the last block still grows, and ``course`` describes the
    others.

    Args:
        size: the number of steps in a block at first.
    """

    __slots__ = ("_began", "_blocks", "_first", "_size", "course")

    def __init__(self, size: int = _BLOCK) -> None:
        self.course: Course | None = None
        self._blocks: list[Block] = []
        self._began = self._size = size
        self._first = 0.0

    def add(self, step: int, loss: float | None) -> None:
        """Add a loss to its block; a full block changes the course."""
        if loss is None or not -_LARGEST < loss < _LARGEST:
            return
        blocks = self._blocks
        if blocks and blocks[-1].count < self._size:
            blocks[-1].add(step, loss)
            return
        if len(blocks) == 1:
            self._first = blocks[0].mean
        if len(blocks) == _BLOCKS:
            blocks[:] = [a.joined(b) for a, b in zip(blocks[::2], blocks[1::2], strict=True)]
            self._size *= 2
        if len(blocks) >= _FEWEST:
            self.course = _course(blocks, self._first, self._began)
        blocks.append(Block(step, step, 1, loss, 0.0))


def _course(blocks: list[Block], first: float, began: int) -> Course:
    quarter = len(blocks) // 4
    middle, last = blocks[-2 * quarter : -quarter], blocks[-quarter:]
    # Neighbouring steps are similar, so the noise of a quarter is computed from its blocks.
    halves = (_mean([b.mean for b in middle]), _mean([b.mean for b in last]))
    noise = [b.mean - halves[0] for b in middle] + [b.mean - halves[1] for b in last]
    freedom = max(1, len(noise) - 2)
    variance = sum(value**2 for value in noise) / freedom
    late = [*middle, *last]
    return Course(
        first=first,
        began=began,
        middle=halves[0],
        last=halves[1],
        error=math.sqrt(2 * variance / quarter),
        spread=math.sqrt(sum(b.squares for b in late) / max(1, sum(b.count for b in late))),
        lowest=min(b.mean for b in late),
        since=middle[0].first,
        steps=sum(b.count for b in late),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
