"""Renders a graph as SVG: self-contained, with a tooltip on every box, readable by assistive
software."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.picture.boxes import Drawing
from gradscope.diagrams.picture.layout import laid_out
from gradscope.records.graph import AutogradGraph

suffix = ".svg"
binary = False

_NAMESPACE = "http://www.w3.org/2000/svg"


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Return Graphviz's drawing with a name and a description, and a tooltip on each box and
    frame."""
    picture, drawing = laid_out(graph, view, "svg")
    ET.register_namespace("", _NAMESPACE)
    root = ET.fromstring(picture)
    titles = _titles(drawing)
    for group in root.iter(f"{{{_NAMESPACE}}}g"):
        title = group.find(f"{{{_NAMESPACE}}}title")
        if title is not None:
            title.text = titles.get(group.get("class", ""), {}).get(title.text or "")
            if not title.text:
                group.remove(title)
    _describe(root, drawing)
    return ET.tostring(root, encoding="unicode") + "\n"


def _titles(drawing: Drawing) -> dict[str, dict[str, str]]:
    """Return the tooltips by Graphviz's class and name of an element."""
    boxes = drawing.boxes
    ends = [(boxes[arrow.tail], boxes[arrow.head]) for arrow in drawing.arrows]
    return {
        "node": {box.id: box.title for box in boxes},
        "cluster": {f"cluster_{i}": c.title for i, c in enumerate(drawing.clusters)},
        "edge": {f"{a.id}->{b.id}": f"{a.lines[0]} → {b.lines[0]}" for a, b in ends},
    }


def _describe(root: ET.Element, drawing: Drawing) -> None:
    """Add a name and a description of the drawing, which assistive software reads first."""
    root.set("role", "graphics-document")
    root.set("aria-roledescription", "graph")
    root.set("aria-label", drawing.title)
    for name in ("desc", "title"):
        element = ET.Element(f"{{{_NAMESPACE}}}{name}")
        element.text = drawing.title if name == "title" else ". ".join(drawing.notes)
        root.insert(0, element)
    # Points in a browser's pixels; a wider window does not blow the text up.
    for side in ("width", "height"):
        points = re.match(r"[\d.]+", root.get(side, ""))
        if points:
            root.set(side, f"{float(points.group()) * 4 / 3:.0f}")
