"""A graph in DOT, the language of Graphviz; written without Graphviz."""

from __future__ import annotations

from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture.dot_text import written
from gradscope.diagrams.picture.drawing import draw
from gradscope.records.graph import AutogradGraph

suffix = ".dot"
binary = False


def render(graph: AutogradGraph, view: GraphView) -> str:
    """The drawing for a view; ``full`` has one node for each node and one edge for each edge."""
    return written(draw(graph, view))
