"""A picture as PNG, at a size at which its text can be read."""

from __future__ import annotations

from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture.layout import laid_out
from gradscope.records.graph import AutogradGraph

suffix = ".png"
binary = True


def render(graph: AutogradGraph, view: GraphView) -> bytes:
    """The drawing at 96 dpi: text is 15 pixels high."""
    return laid_out(graph, view, "png")[0]
