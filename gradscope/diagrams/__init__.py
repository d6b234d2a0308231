"""Renders an AutogradGraph in each format.

A format is a file here with ``render(graph, view)``, or an entry of ``FORMATS``; its name is the
value of ``-f``. All formats share the groups of ``graph``, and all pictures the layout of
``picture``, so formats cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable

from gradscope.diagrams.graph import GraphView
from gradscope.plugins import Format
from gradscope.records.graph import AutogradGraph

__all__ = ["FORMATS", "GraphView"]


def _json(graph: AutogradGraph, view: GraphView) -> str:
    """Return the record as JSON without folds: the full graph, or the requested paths.

    ``answers`` explain requested names that are not in the graph.
    """
    from gradscope.diagrams.graph.lookup import between
    from gradscope.records import json

    return json.dumps(between(graph, view, answers=True))


def _dot(graph: AutogradGraph, view: GraphView) -> str:
    """Return the drawing in the language of Graphviz, without running Graphviz.

    With ``view.full``, each node of the graph is a node, and each edge an edge.
    """
    from gradscope.diagrams.picture.drawing import draw
    from gradscope.diagrams.picture.graphviz import written

    return written(draw(graph, view))


def _laid_out(form: str) -> Callable[[AutogradGraph, GraphView], bytes]:
    """Return the drawing at its own size: vectors, or pixels at 96 dpi with text 15 pixels high."""

    def render(graph: AutogradGraph, view: GraphView) -> bytes:
        from gradscope.diagrams.picture.layout import laid_out

        return laid_out(graph, view, form)[0]

    return render


#: Formats that only pass on.
FORMATS = {
    "dot": Format(".dot", _dot),
    "json": Format(".json", _json),
    "pdf": Format(".pdf", _laid_out("pdf"), binary=True),
    "png": Format(".png", _laid_out("png"), binary=True),
}
