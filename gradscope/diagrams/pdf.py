"""A picture as PDF: one page of the drawing's own size, with text that can be searched."""

from __future__ import annotations

from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture.layout import laid_out
from gradscope.records.graph import AutogradGraph

suffix = ".pdf"
binary = True


def render(graph: AutogradGraph, view: GraphView) -> bytes:
    """The drawing as vectors."""
    return laid_out(graph, view, "pdf")[0]
