"""Parts of a picture: boxes, arrows and frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """An operation, a closed group, a parameter or an input; ``lines`` are in it, first bold.

    ``node`` is the graph's node where it is one; ``mark`` says where zero, missing or non-finite
    gradients begin.
    """

    id: str
    kind: str  # operation | group | repeats | parameter | input
    lines: tuple[str, ...]
    title: str
    fill: str
    cluster: int | None = None
    node: int | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the box that the gradient leaves to the one that it reaches, so many times."""

    tail: int
    head: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open group: a frame with a label around its boxes and around clusters in it.

    The label is at the left (``l``) or the right (``r``) of its top; ``wide`` leaves as much
    room beside it as it takes itself.
    """

    label: str
    title: str
    parent: int | None = None
    depth: int = 0
    side: str = "l"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a picture shows. Arrows and boxes name boxes and clusters by their place.

    ``bar`` has the colours of the scale from small to large, ``ticks`` the values at its left end,
    middle and right end; ``legend`` what other colours mean. ``direction`` is where arrows lead:
    down (TB) or to the right (LR).
    """

    title: str
    notes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    clusters: tuple[Cluster, ...]
    bar: tuple[str, ...] = ()
    ticks: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    by: str = "gradient"
    full: bool = False
    direction: str = "TB"

    @property
    def depth(self) -> int:
        """The level of the deepest boxes: 1 is the model's direct parts."""
        return max((c.depth for c in self.clusters), default=0)


def height(drawing: Drawing) -> float:
    """About how tall the drawing gets, in points: the longest way down, by the lines in boxes."""
    top = [0.0] * len(drawing.boxes)
    for i, heads in downwards(drawing):
        bottom = top[i] + 14 * len(drawing.boxes[i].lines) + 34
        for head in heads:
            top[head] = max(top[head], bottom)
    frames = 2 * 22 * drawing.depth
    return max(top, default=0.0) + frames + 70


def downwards(drawing: Drawing) -> Iterator[tuple[int, list[int]]]:
    """Each box, after all that lead to it, with those that it leads to."""
    waiting = Counter(arrow.head for arrow in drawing.arrows)
    after: dict[int, list[int]] = {}
    for arrow in drawing.arrows:
        after.setdefault(arrow.tail, []).append(arrow.head)
    ready = [i for i in range(len(drawing.boxes)) if not waiting[i]]
    while ready:
        i = ready.pop()
        yield i, after.get(i, [])
        for head in after.get(i, ()):
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(head)
