"""A graph as strict JSON: the record itself, folded nowhere."""

from __future__ import annotations

from gradscope.diagrams.graph.lookup import between
from gradscope.diagrams.graph.view import GraphView
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph

suffix = ".json"
binary = False


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Everything that is known of the full graph, or of the paths that were asked for.

    What was asked for and is not in the graph is answered in ``answers``.
    """
    return record_json.dumps(between(graph, view, answers=True))
