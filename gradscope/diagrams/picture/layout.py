"""Lays out a graph as requested, or with less content if that takes too long.

A full drawing may have hundreds of rows. Graphviz spends most of its time on edges over many rows:
a DenseNet-201 takes minutes with them, and 0.3 s without. A chain of 4,000 operations is also too
tall for a page. So the rows are laid out with short edges only, and cut into columns side by side;
long edges are drawn as arcs.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.picture.boxes import Arrow, Box, Drawing, downwards, height
from gradscope.diagrams.picture.drawing import coarser, draw
from gradscope.diagrams.picture.graphviz import (
    Clock,
    TooLarge,
    TooSlow,
    attributes,
    caption,
    head,
    node,
    quoted,
    require,
    run,
    with_clear_titles,
    written,
)
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.numbers import number


def laid_out(graph: AutogradGraph, view: GraphView, form: str) -> tuple[bytes, Drawing]:
    """Return the picture in a format of Graphviz, and its drawing.

    Each attempt may take ``view.timeout`` seconds; ``view.say`` gets a notice if a coarser drawing
    replaces it.

    Raises:
        OptionError: Graphviz is not installed, failed, or is too slow even for the coarsest
            drawing.
    """
    require(form)
    slow: list[str] = []
    attempt: GraphView | None = view
    while attempt is not None:
        drawing = draw(graph, attempt)
        try:
            picture = _once(drawing, form, view.timeout)
        except TooSlow:
            slow.append(f"did not lay out in {number(view.timeout)} s")
        except TooLarge:
            slow.append(f"is too large for a {form} (not for svg, pdf or html)")
        else:
            if slow:
                asked = _words(view)
                view.say(f"{asked} {slow[0]}: drawn at depth {drawing.depth} instead")
            return picture, drawing
        attempt = coarser(drawing, attempt)
    raise OptionError(
        f"{_words(view)} {slow[0]}, and no coarser one was drawn either",
        help="a longer --layout-timeout, or a format that needs no layout: html, dot, mermaid, "
        "graphml",
    )


def _once(drawing: Drawing, form: str, seconds: float) -> bytes:
    clock = Clock.of(seconds)
    if needs_strips(drawing):
        return stripped(drawing, form, clock)
    return run(written(with_clear_titles(drawing, clock), tooltips=False), form, clock)


def _words(view: GraphView) -> str:
    if view.full:
        return "the full drawing"
    return f"the drawing at depth {view.depth}" if view.depth is not None else "the drawing"


#: Edges over more rows than this are arcs; over fewer Graphviz leads them around the boxes.
_ROWS = 6
#: A drawing taller than this is cut into columns.
_TALL = 4000.0
#: Height over width that the columns aim at.
_ASPECT = 1.3
_GAP = 60.0
_CAPTION = "caption"
#: With more boxes, curves around boxes cost more time than the rest; lines and arcs over boxes
#: replace them.
_MANY = 2000
#: A PNG of more pixels than this opens in few viewers: at 96 dpi, 4/3 pixels a point.
_PIXELS = 120e6
_SIDE = 24_000.0


def needs_strips(drawing: Drawing) -> bool:
    """Return True for a full drawing with long edges, or one too tall for a page."""
    return (
        drawing.full
        and drawing.direction == "TB"
        and (bool(_long(drawing)) or height(drawing) > _TALL)
    )


def stripped(drawing: Drawing, form: str, clock: Clock) -> bytes:
    """Return the picture of a full drawing in columns.

    Raises:
        TooSlow, TooLarge, OptionError: as ``graphviz.run``.
    """
    long = _long(drawing)
    short = [arrow for i, arrow in enumerate(drawing.arrows) if i not in long]
    layout = run(_rows(drawing, short, _spine(drawing)), "plain", clock).decode()
    places, curves = _read(layout)
    columns = _columns(places, drawing)
    placed = {
        name: PlacedBox(p.x + columns[name][1], p.y + columns[name][2], p.width, p.height)
        for name, p in places.items()
        if name != _CAPTION
    }
    if form == "png":
        _check_size(placed)
    text = _final(drawing, places, placed, columns, curves)
    return run(text, form, clock, engine="nop2")


def _long(drawing: Drawing) -> set[int]:
    """Return the arrows that lead over many rows; a box's row is the longest path from the top."""
    row, _ = _row_numbers(drawing)
    most = 1 if len(drawing.boxes) > _MANY else _ROWS
    return {i for i, a in enumerate(drawing.arrows) if row[a.head] - row[a.tail] > most}


def _row_numbers(drawing: Drawing) -> tuple[list[int], list[int]]:
    """Return each box's row, and the box above it on the longest path from the top (-1 at the
    top)."""
    row = [0] * len(drawing.boxes)
    above = [-1] * len(drawing.boxes)
    for i, heads in downwards(drawing):
        for below in heads:
            if row[i] + 1 > row[below]:
                row[below], above[below] = row[i] + 1, i
    return row, above


def _spine(drawing: Drawing) -> set[tuple[int, int]]:
    """Return the arrows of the longest path, which stay straight so that the rows do not drift
    aside."""
    row, above = _row_numbers(drawing)
    box = max(range(len(row)), key=row.__getitem__)
    found = set()
    while above[box] >= 0:
        found.add((above[box], box))
        box = above[box]
    return found


def _rows(drawing: Drawing, arrows: Iterable[Arrow], spine: set[tuple[int, int]]) -> str:
    """Return the DOT text of the rows, with the caption as a separate node so that its size is
    known."""
    splines = "line" if len(drawing.boxes) > _MANY else "true"
    how = {"label": "", "mclimit": "0.2", "splines": splines}
    lines = ["digraph gradscope {", *head(drawing, how), _caption_node(drawing)]
    lines += [node(box, tooltips=False) for box in drawing.boxes]
    for arrow in arrows:
        ends = " -> ".join(quoted(drawing.boxes[i].id) for i in (arrow.tail, arrow.head))
        straight = " [weight=40]" if (arrow.tail, arrow.head) in spine else ""
        lines.append(f"  {ends}{straight};")
    return "\n".join([*lines, "}\n"])


def _check_size(placed: dict[str, PlacedBox]) -> None:
    """Refuse a PNG that would be too large, before minutes are spent on painting it."""
    wide = 4 / 3 * max(p.x + p.width for p in placed.values())
    tall = 4 / 3 * max(p.height - p.y for p in placed.values())
    if wide * tall > _PIXELS or max(wide, tall) > _SIDE:
        raise TooLarge


def _caption_node(drawing: Drawing, **more: str) -> str:
    about = {"label": caption(drawing), "shape": "plain", "fillcolor": "none", **more}
    return f"  {_CAPTION} {attributes(about)};"


def _read(plain: str) -> tuple[dict[str, PlacedBox], dict[tuple[str, str], list[list[Point]]]]:
    """Read the places of boxes and the curves of arrows from Graphviz's plain format, in points."""
    places: dict[str, PlacedBox] = {}
    curves: dict[tuple[str, str], list[list[Point]]] = {}
    for line in plain.splitlines():
        if line.startswith("node "):
            name, *four = line.split(" ", 6)[1:6]
            x, y, width, tall = (72 * float(n) for n in four)
            places[name] = PlacedBox(x, y, width, tall)
        elif line.startswith("edge "):
            tail, to, n, *rest = shlex.split(line)[1:]
            numbers = [72 * float(x) for x in rest[: 2 * int(n)]]
            points = list(zip(numbers[::2], numbers[1::2], strict=True))
            curves.setdefault((tail, to), []).append(points)
    return places, curves


def _columns(places: dict[str, PlacedBox], drawing: Drawing) -> dict[str, tuple[int, float, float]]:
    """Return for each box its column, and its shift right and up.

    Boxes of one row stay in one column, so that a curve inside a column moves as it is.
    """
    boxes = {name: place for name, place in places.items() if name != _CAPTION}
    top = max(p.y + p.height / 2 for p in boxes.values())
    bottom = min(p.y - p.height / 2 for p in boxes.values())
    full = top - bottom
    wide = max(p.width for p in boxes.values())
    typical = max(1.5 * wide, _typical(boxes))
    number = max(1, math.ceil(math.sqrt(full / (_ASPECT * typical)))) if full > _TALL else 1
    each = full / number
    column = {n: min(number - 1, int((top - p.y) / each)) for n, p in boxes.items()}
    moves: dict[int, tuple[float, float]] = {}
    at = 0.0
    arcs = _arc_room(drawing, column, places)
    for i in range(number):
        inside = [p for n, p in boxes.items() if column[n] == i]
        if not inside:
            continue
        left = min(p.x - p.width / 2 for p in inside)
        right = max(p.x + p.width / 2 for p in inside)
        moves[i] = (at - left, -max(p.y + p.height / 2 for p in inside))
        at += right - left + _GAP + arcs.get(i, 0.0)
    return {n: (i, *moves[i]) for n, i in column.items()}


def _typical(boxes: dict[str, PlacedBox]) -> float:
    """Return the width of the rows of most boxes (the middle nine tenths)."""
    xs = sorted(p.x for p in boxes.values())
    cut = len(xs) // 20
    return xs[len(xs) - 1 - cut] - xs[cut]


def _arc_room(
    drawing: Drawing, column: dict[str, int], places: dict[str, PlacedBox]
) -> dict[int, float]:
    room: dict[int, float] = {}
    for i in sorted(_long(drawing)):
        tail, to = (drawing.boxes[n].id for n in (drawing.arrows[i].tail, drawing.arrows[i].head))
        if column[tail] == column[to]:
            reach = bulge(places[tail].y - places[to].y)
            room[column[tail]] = max(room.get(column[tail], 0.0), reach)
    return room


def _final(
    drawing: Drawing,
    places: dict[str, PlacedBox],
    placed: dict[str, PlacedBox],
    columns: dict[str, tuple[int, float, float]],
    curves: dict[tuple[str, str], list[list[Point]]],
) -> str:
    """Return the DOT text with fixed places."""
    above = places[_CAPTION]
    spot = quoted(f"{above.width / 2:.1f},{30 + above.height / 2:.1f}")
    lines = ["digraph gradscope {", *head(drawing, {"label": ""}), _caption_node(drawing, pos=spot)]
    for box in drawing.boxes:
        at = placed[box.id]
        lines.append(node(box, tooltips=False, more={"pos": quoted(f"{at.x:.1f},{at.y:.1f}")}))
    for arrow in drawing.arrows:
        tail, to = drawing.boxes[arrow.tail], drawing.boxes[arrow.head]
        lines.append(edge(tail, to, placed, columns, curves))
    return "\n".join([*lines, "}\n"])


#: The length of an arrow head, in points.
_TIP = 8.0
_PALE = "#9aa3af"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """The centre and the size of a box in points; y grows upwards."""

    x: float
    y: float
    width: float
    height: float


def edge(
    tail: Box,
    to: Box,
    placed: dict[str, PlacedBox],
    columns: dict[str, tuple[int, float, float]],
    curves: dict[tuple[str, str], list[list[Point]]],
) -> str:
    """Return an arrow: as Graphviz drew it, as an arc beside its column, or as a curve to another
    column."""
    column, right, up = columns[tail.id]
    start, end = placed[tail.id], placed[to.id]
    about: dict[str, str] = {}
    known = curves.get((tail.id, to.id))
    if column != columns[to.id][0]:
        points = list(_across(start, end))
        about["color"] = _PALE
    elif known:
        points = [(x + right, y + up) for x, y in known.pop()]
    else:
        points = list(_arc(start, end))
        about["color"] = _PALE
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    tip = "{:.1f},{:.1f}".format(*_tip(points))
    about["pos"] = quoted(f"e,{tip} {path}")
    return f"  {quoted(tail.id)} -> {quoted(to.id)} {attributes(about)};"


def _across(start: PlacedBox, end: PlacedBox) -> Iterator[Point]:
    low, high = start.y - start.height / 2, end.y + end.height / 2 + _TIP
    yield from ((start.x, low), (start.x, low - 50), (end.x, high + 50), (end.x, high))


def _arc(start: PlacedBox, end: PlacedBox) -> Iterator[Point]:
    reach = bulge(start.y - end.y)
    out, into = start.x + start.width / 2, end.x + end.width / 2 + _TIP
    side = max(out, into) + reach
    yield from ((out, start.y), (side, start.y), (side, end.y), (into, end.y))


def _tip(points: list[Point]) -> Point:
    """Return the end of the arrow head: slightly beyond the curve's last point."""
    (x, y), (before_x, before_y) = points[-1], points[-2]
    far = math.hypot(x - before_x, y - before_y) or 1.0
    return x + _TIP * (x - before_x) / far, y + _TIP * (y - before_y) / far


def bulge(tall: float) -> float:
    """Return the horizontal distance of an arc's control points, for its height."""
    return 30 + min(300.0, 0.15 * abs(tall))
