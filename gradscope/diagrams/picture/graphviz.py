"""Runs Graphviz from the package pygraphviz, and keeps arrows off the titles of frames.

Graphviz leads arrows around boxes, but through the titles of frames. So a drawing is laid out;
titles that an arrow crosses move to the other side of their frame, or their frame gets wider; then
it is laid out again.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gradscope import progress
from gradscope.diagrams.picture.boxes import Cluster, Drawing
from gradscope.diagrams.picture.dot_text import written
from gradscope.errors import OptionError

#: Formats that need no layout.
_WITHOUT = "html, dot, mermaid, graphml and json need none"
#: As long as it takes, in seconds: the system's clocks do not take every number.
_LONGEST = 1e6


class TooSlow(Exception):
    """The layout did not end in time."""


class TooLarge(Exception):
    """Graphviz finished, but a picture of that size cannot be shown."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The remaining time of a limit in seconds."""

    end: float

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """Start a limit now."""
        return cls(time.monotonic() + min(seconds, _LONGEST))

    def left(self) -> float:
        """Return the seconds until the end; 0 after it."""
        return max(0.0, self.end - time.monotonic())


def require(form: str) -> None:
    """Check that Graphviz is installed, before anything is computed.

    Raises:
        OptionError: it is not installed; the message says how to install it, and which formats work
            without it.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise OptionError(
            f"{form} needs Graphviz to lay the graph out, which comes with the package pygraphviz",
            help=f"pip install 'pygraphviz>=2', or choose another format: {_WITHOUT}",
        )


def run(dot: str, form: str, clock: Clock, *, engine: str = "dot") -> bytes:
    """Return the picture of a DOT text.

    Raises:
        TooSlow: it did not finish in time; the process was ended.
        TooLarge: Graphviz had to shrink the picture, so that nothing in it could be read.
        OptionError: Graphviz failed.
    """
    # -P: neither the working folder nor this one, which has a json.py, may hide a module.
    command = [
        sys.executable,
        "-P",
        "-m",
        "gradscope.diagrams.picture.process",
        engine,
        form,
    ]
    progress.begin("laying out the picture")
    if clock.left() <= 0:
        raise TooSlow
    try:
        done = subprocess.run(
            command, input=dot.encode(), capture_output=True, timeout=clock.left(), check=False
        )
    except subprocess.TimeoutExpired:
        raise TooSlow from None
    complaint = done.stderr.decode(errors="replace").strip()
    if "Scaling by" in complaint:
        raise TooLarge
    if done.returncode or not done.stdout:
        raise _failure(done.returncode, complaint, form)
    return done.stdout


def _failure(code: int, complaint: str, form: str) -> OptionError:
    last = complaint.splitlines()[-1] if complaint else "it wrote nothing"
    why = f"it was ended by signal {-code}" if code < 0 else last
    return OptionError(
        f"Graphviz could not draw this graph as {form}: {why}",
        help=f"--depth 1 draws less; of the other formats, {_WITHOUT}",
        notes=[f"Graphviz said: {last}"] if code < 0 and complaint else (),
    )


#: Number of layouts tried for this, and the least distance of an arrow from a title, in points.
_ROUNDS, _NEAR = 4, 2.0
_STEPS = 16

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Rectangle:
    left: float
    low: float
    right: float
    high: float

    def holds(self, point: Point) -> bool:
        x, y = point
        return (
            self.left - _NEAR <= x <= self.right + _NEAR
            and self.low - _NEAR <= y <= self.high + _NEAR
        )


def with_clear_titles(drawing: Drawing, clock: Clock) -> Drawing:
    """Return the drawing with each title on the side of its frame where fewer arrows cross it.

    Raises:
        TooSlow, OptionError: as ``graphviz.run``.
    """
    if not drawing.clusters:
        return drawing
    widened: set[int] = set()
    for _ in range(_ROUNDS):
        layout = json.loads(run(written(drawing, tooltips=False), "json0", clock))
        clusters = list(drawing.clusters)
        for i, crossed, mirrored in _crossings(drawing, layout):
            side = {"l": "r", "r": "l"}[clusters[i].side]
            if mirrored < crossed:
                clusters[i] = replace(clusters[i], side=side)
            elif i not in widened:
                # On both sides: there is room beside the arrow only in a wider frame.
                widened.add(i)
                clusters[i] = replace(clusters[i], wide=True)
        if tuple(clusters) == drawing.clusters:
            break
        drawing = replace(drawing, clusters=tuple(clusters))
    return drawing


def crossed_titles(drawing: Drawing, clock: Clock) -> list[Cluster]:
    """Return the frames whose titles an arrow still crosses."""
    layout = json.loads(run(written(drawing, tooltips=False), "json0", clock))
    return [drawing.clusters[i] for i, _, _ in _crossings(drawing, layout)]


def _crossings(drawing: Drawing, layout: dict[str, object]) -> Iterator[tuple[int, int, int]]:
    """Yield for each frame with a crossed title the number of arrows across it, and across its
    other side.
    """
    arrows = [list(_points(str(edge["pos"]))) for edge in _list(layout, "edges") if "pos" in edge]
    for frame in _list(layout, "objects"):
        name = str(frame.get("name", ""))
        if not name.startswith("cluster_") or "lp" not in frame:
            continue
        i = int(name.removeprefix("cluster_"))
        left, _, right, _ = map(float, str(frame["bb"]).split(","))
        x, y = map(float, str(frame["lp"]).split(","))
        # The blanks that widen a frame belong to its label, and are longer than the title.
        share = 0.46 if drawing.clusters[i].wide else 1.0
        width, tall = 72 * float(str(frame["lwidth"])), 72 * float(str(frame["lheight"]))
        start, end = x - width / 2, x + width / 2
        if drawing.clusters[i].side == "l":
            end = start + share * width
        else:
            start = end - share * width
        title = _Rectangle(start, y - tall / 2, end, y + tall / 2)
        mirror = replace(title, left=left + right - end, right=left + right - start)
        crossed = sum(any(map(title.holds, points)) for points in arrows)
        if crossed:
            yield i, crossed, sum(any(map(mirror.holds, points)) for points in arrows)


def _list(layout: dict[str, object], key: str) -> list[dict[str, object]]:
    found = layout.get(key, [])
    return found if isinstance(found, list) else []


def _points(position: str) -> Iterator[Point]:
    """Yield points along an arrow, from Graphviz's text: ``e,x,y`` for its tip, then cubic
    curves."""
    points = [
        (float(x), float(y))
        for x, y in (word.split(",")[-2:] for word in position.split() if word[:1] not in "es")
    ]
    for i in range(0, len(points) - 3, 3):
        for step in range(_STEPS + 1):
            yield _bezier(points[i : i + 4], step / _STEPS)


def _bezier(four: list[Point], t: float) -> Point:
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    x = sum(w * p[0] for w, p in zip(weights, four, strict=True))
    return x, sum(w * p[1] for w, p in zip(weights, four, strict=True))
