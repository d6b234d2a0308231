"""Writes a drawing as DOT, runs Graphviz from the package pygraphviz, and keeps arrows off the
titles of frames: https://graphviz.org/doc/info/lang.html.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gradscope import progress
from gradscope.diagrams.picture.boxes import INK, PLAIN, Box, Cluster, Drawing
from gradscope.errors import OptionError
from gradscope.typeset.text import break_words, plain

#: Wide fonts with nearly equal widths come first: any other font that a reader has is narrower.
FONT = "DejaVu Sans,Verdana,Geneva,sans-serif"
#: In points: 15 px high at the size a browser or a picture at 96 dpi shows.
SIZE = 11
_FRAMES = ("#f6f7f9", "#eceff3", "#e2e6ec")
_ALARM = "#b00020"
_CAPTION = 76
#: The width of a step of the colour bar, in points.
_STEP = 7

_GRAPH = {
    "bgcolor": PLAIN,
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "labelloc": "t",
    "labeljust": "l",
    "nodesep": "0.25",
    "ranksep": "0.3",
    "pad": "0.2",
    "outputorder": "edgesfirst",
}
_NODE = {
    "shape": "box",
    "style": "filled",
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "color": "#555555",
    "margin": "0.16,0.06",
    "height": "0.2",
}
_EDGE = {
    "color": "#5b6470",
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "arrowsize": "0.7",
}


def written(drawing: Drawing, *, tooltips: bool = True) -> str:
    """Return the drawing; with ``full``, a plain digraph with a node ``n<id>`` for each node."""
    return "\n".join(
        [
            "digraph gradscope {",
            *head(drawing, {"label": caption(drawing), "rankdir": drawing.direction}),
            *_framed(drawing, tooltips),
            *edges(drawing),
            "}\n",
        ]
    )


def head(drawing: Drawing, more: Mapping[str, str]) -> list[str]:
    """Return the attributes of the graph, of all nodes and of all edges."""
    return [
        f"  graph {attributes({**_GRAPH, **more})};",
        f"  node {attributes(_NODE)};",
        f"  edge {attributes(_EDGE)};",
    ]


def _framed(drawing: Drawing, tooltips: bool) -> Iterator[str]:
    """Yield nodes inside their frames, nested."""
    boxes: dict[int | None, list[Box]] = {}
    for box in drawing.boxes:
        boxes.setdefault(box.cluster, []).append(box)
    frames: dict[int | None, list[int]] = {}
    for i, cluster in enumerate(drawing.clusters):
        frames.setdefault(cluster.parent, []).append(i)
    todo: list[int | str] = list(reversed(frames.get(None, [])))
    yield from (node(box, tooltips=tooltips) for box in boxes.get(None, ()))
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
            continue
        cluster = drawing.clusters[item]
        about = {
            "label": quoted(_frame_label(cluster)),
            "labeljust": cluster.side,
            "style": "rounded",
            "color": "#8a94a3",
            "bgcolor": _FRAMES[cluster.depth % len(_FRAMES)],
        }
        if tooltips:
            about["tooltip"] = quoted(cluster.title)
        yield f"  subgraph cluster_{item} {{ graph {attributes(about)};"
        yield from (node(box, tooltips=tooltips) for box in boxes.get(item, ()))
        todo.append("  }")
        todo += reversed(frames.get(item, []))


def _frame_label(cluster: Cluster) -> str:
    """Return the title of a frame; non-breaking blanks as wide as the title widen the frame."""
    blanks = "\u2002" * round(1.5 * len(cluster.label)) if cluster.wide else ""
    return blanks + cluster.label if cluster.side == "r" else cluster.label + blanks


def node(box: Box, *, tooltips: bool = True, more: Mapping[str, str] | None = None) -> str:
    """Return one box."""
    about = {"label": _lines(box), "fillcolor": box.fill}
    if box.kind in ("group", "repeats"):
        about["style"] = "filled,rounded"
    if box.kind == "repeats":
        about["peripheries"] = "2"
    if box.kind in ("parameter", "input"):
        about["shape"] = "ellipse" if box.kind == "input" else "note"
    if box.mark:
        about |= {"color": _ALARM, "penwidth": "3"}
    if tooltips:
        about["tooltip"] = quoted(box.title)
    return f"  {quoted(box.id)} {attributes({**about, **(more or {})})};"


def edges(drawing: Drawing) -> Iterator[str]:
    """Yield one statement for each arrow."""
    for arrow in drawing.arrows:
        ends = (quoted(drawing.boxes[i].id) for i in (arrow.tail, arrow.head))
        several = f' [label=" ×{arrow.count}"]' if arrow.count > 1 else ""
        yield f"  {' -> '.join(ends)}{several};"


def _lines(box: Box) -> str:
    first, *rest = (markup(line) for line in box.lines)
    return f"<{'<br/>'.join((f'<b>{first}</b>', *rest))}>"


def caption(drawing: Drawing) -> str:
    """Return title, notes and legend as an HTML-like label."""
    lines = [f"<b>{markup(line)}</b>" for line in break_words(drawing.title, _CAPTION)]
    for note in drawing.notes:
        lines += [markup(line) for line in break_words(note, _CAPTION)]
    rows = "".join(f'<tr><td align="left">{line}</td></tr>' for line in lines)
    if drawing.bar or drawing.legend:
        swatches = "".join(
            f'<td bgcolor="{fill}" border="1" cellpadding="4">{markup(words)}</td>'
            for fill, words in drawing.legend
        )
        words = "gradient norm" if drawing.by == "gradient" else "saved"
        bar = f"<td>{_bar(drawing)}</td>" if drawing.bar else ""
        cells = f'<td border="0">{words}</td>{bar}{swatches}'
        table = f'<table border="0" cellspacing="4" align="left"><tr>{cells}</tr></table>'
        rows += f'<tr><td align="left">{table}</td></tr>'
    return f'<<table border="0" cellspacing="0" cellpadding="1">{rows}</table>>'


def _bar(drawing: Drawing) -> str:
    """Return the colours of the scale side by side, with values below its ends and its middle."""
    steps = len(drawing.bar)
    if steps == 1:
        return (
            f'<table border="0" cellspacing="0"><tr><td bgcolor="{drawing.bar[0]}" border="1" '
            f'cellpadding="4">{markup(drawing.ticks[0])}</td></tr></table>'
        )
    colors = "".join(
        # Its own border colour: without it a hair of white is between two cells.
        f'<td bgcolor="{fill}" color="{fill}" border="1" width="{_STEP}" height="12" '
        'fixedsize="true"></td>'
        for fill in drawing.bar
    )
    third = steps // 3
    values = "".join(
        f'<td colspan="{third}" align="{side}">{markup(words)}</td>'
        for side, words in zip(("left", "center", "right"), drawing.ticks, strict=True)
    )
    return (
        '<table border="0" cellspacing="0" cellpadding="0">'
        f"<tr>{colors}</tr><tr>{values}</tr></table>"
    )


def attributes(pairs: Mapping[str, str]) -> str:
    """Return an attribute list; values are quoted, unless they are quoted or HTML-like."""
    written = (f"{k}={v if v[:1] in ('<', chr(34)) else quoted(v)}" for k, v in pairs.items())
    return f"[{' '.join(written)}]"


def quoted(text: str) -> str:
    """Return a quoted DOT string; backslashes are escaped, line breaks stay."""
    lines = (plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'


def markup(text: str) -> str:
    """Escape text inside an HTML-like label."""
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace('"', "&quot;") or " "


#: Formats that need no layout.
_WITHOUT = "html, dot, mermaid, graphml and json need none"
#: Seconds that stand for no limit, because the system's clocks do not accept every number.
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


#: The program of the separate process: DOT from standard input, a picture to standard output.
_DRAW = """
import sys
from pygraphviz import AGraph

engine, form = sys.argv[1:]
graph = AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(prog=engine, format=form))
"""


def run(dot: str, form: str, clock: Clock, *, engine: str = "dot") -> bytes:
    """Return the picture of a DOT text.

    Raises:
        TooSlow: it did not finish in time; the process was ended.
        TooLarge: Graphviz had to shrink the picture, so that nothing in it could be read.
        OptionError: Graphviz failed.
    """
    # -P: no file of the working folder, such as a json.py, may hide a module.
    command = [sys.executable, "-P", "-c", _DRAW, engine, form]
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
        notes=[f"Graphviz reports: {last}"] if code < 0 and complaint else (),
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
