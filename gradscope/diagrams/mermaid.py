"""Renders a graph as a Mermaid flowchart, which Markdown viewers draw: https://mermaid.js.org."""

from __future__ import annotations

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.picture.boxes import Box, Drawing
from gradscope.diagrams.picture.drawing import coarser, draw
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.text import plain

suffix = ".mmd"
binary = False

#: Mermaid's own defaults; a larger chart is an error message in place of a picture.
MAX_EDGES = 500
MAX_TEXT = 50_000

_SHAPES = {
    "operation": ("[", "]"),
    "group": ("(", ")"),
    "repeats": ("[[", "]]"),
    "parameter": ("[/", "/]"),
    "input": ("([", "])"),
}
#: Characters that mean something to Mermaid, to its Markdown, or to HTML.
_SPECIAL = set("\"#&<>`;:\\*_[](){}|~@%'=/")


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Return the drawing for a view, or the finest that Mermaid accepts; ``view.say`` gets a
    notice."""
    attempt: GraphView | None = view
    while attempt is not None:
        drawing = draw(graph, attempt)
        text = written(drawing)
        if accepted(drawing, text):
            break
        attempt = coarser(drawing, attempt)
    limits = f"Mermaid draws at most {MAX_EDGES} arrows and {MAX_TEXT:,} characters"
    if attempt is None:
        view.say(f"{limits} by default, and this is more: raise its maxEdges and maxTextSize")
    elif attempt is not view:
        view.say(f"{limits}: drawn at depth {drawing.depth} instead")
    return text


def accepted(drawing: Drawing, text: str) -> bool:
    """Return True if Mermaid draws it with its default limits."""
    return len(drawing.arrows) <= MAX_EDGES and len(text) <= MAX_TEXT


def written(drawing: Drawing) -> str:
    """Return the flowchart."""
    fills = {fill: f"f{i}" for i, fill in enumerate(dict.fromkeys(b.fill for b in drawing.boxes))}
    lines = [
        *(f"%% {plain(line)}" for line in (drawing.title, *drawing.notes)),
        f"flowchart {drawing.direction}",
    ]
    lines += [f"  classDef {name} fill:{fill},color:#111" for fill, name in fills.items()]
    lines.append("  classDef mark stroke:#b00020,stroke-width:3px")
    lines += _boxes(drawing, fills)
    for arrow in drawing.arrows:
        several = f'|"×{arrow.count}"|' if arrow.count > 1 else ""
        lines.append(f"  b{arrow.tail} -->{several} b{arrow.head}")
    marked = [f"b{i}" for i, box in enumerate(drawing.boxes) if box.mark]
    if marked:
        lines.append(f"  class {','.join(marked)} mark")
    return "\n".join(lines) + "\n"


def _boxes(drawing: Drawing, fills: dict[str, str]) -> list[str]:
    """Yield boxes inside their subgraphs, nested."""
    inside: dict[int | None, list[str]] = {}
    for i, box in enumerate(drawing.boxes):
        inside.setdefault(box.cluster, []).append(_box(i, box, fills[box.fill]))
    frames: dict[int | None, list[int]] = {}
    for i, cluster in enumerate(drawing.clusters):
        frames.setdefault(cluster.parent, []).append(i)
    lines = inside.get(None, [])
    todo: list[int | None] = list(reversed(frames.get(None, [])))
    while todo:
        frame = todo.pop()
        if frame is None:
            lines.append("  end")
            continue
        lines.append(f'  subgraph c{frame}["{escaped(drawing.clusters[frame].label)}"]')
        lines += inside.get(frame, [])
        todo += [None, *reversed(frames.get(frame, []))]
    return lines


def _box(i: int, box: Box, fill: str) -> str:
    opening, closing = _SHAPES[box.kind]
    label = "<br/>".join(escaped(line) for line in box.lines)
    return f'  b{i}{opening}"{label}"{closing}:::{fill}'


def escaped(text: str) -> str:
    """Return text for a quoted label: characters special to Mermaid become character codes."""
    return "".join(f"#{ord(c)};" if c in _SPECIAL else c for c in plain(text))
