"""A picture as PDF: one page of the drawing's own size, with text that can be searched."""

from __future__ import annotations

from gradscope.diagrams._layout import laid_out
from gradscope.diagrams._view import GraphView
from gradscope.records.graph import AutogradGraph

suffix = ".pdf"
binary = True


def render(graph: AutogradGraph, view: GraphView) -> bytes:
    """The drawing as vectors."""
    return laid_out(graph, view, "pdf")[0]
