"""Renders a graph as GraphML, for yEd, Gephi and networkx: every node and edge with its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.lookup import between
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.typeset.text import plain

suffix = ".graphml"
binary = False

_NODE = {
    "op": "string",
    "kind": "string",
    "name": "string",
    "module": "string",
    "call": "int",
    "shape": "string",
    "saved_bytes": "long",
    "grad_norm": "double",
    "grad_nonfinite": "long",
    "location": "string",
}
_EDGE = {"input_nr": "int", "position": "int", "inner": "boolean"}


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Return the data of the full graph, or of the requested paths."""
    return "\n".join(_lines(between(graph, view))) + "\n"


def _lines(graph: AutogradGraph) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    for domain, keys in (("node", _NODE), ("edge", _EDGE)):
        for key, kind in keys.items():
            yield f'  <key id="{key}" for="{domain}" attr.name="{key}" attr.type="{kind}"/>'
    yield f'  <graph id={_attribute(graph.run.model)} edgedefault="directed">'
    if graph.part is not None:
        yield f"    <desc>only {_text(graph.part)}</desc>"
    for node in graph.nodes:
        yield f'    <node id="n{node.id}">{_data(_facts(node))}</node>'
    for node in graph.nodes:
        for inner, edges in ((False, node.to), (True, node.inner)):
            for position, edge in enumerate(edges):
                if edge is None:  # an input that needs no gradient
                    continue
                about = {"input_nr": edge[1], "position": position, "inner": inner}
                ends = f'source="n{node.id}" target="n{edge[0]}"'
                yield f"    <edge {ends}>{_data(about)}</edge>"
    yield "  </graph>\n</graphml>"


def _facts(node: GraphNode) -> dict[str, object]:
    shape = None if node.shape is None else "×".join(map(str, node.shape))
    return {key: shape if key == "shape" else getattr(node, key) for key in _NODE}


def _data(facts: Mapping[str, object]) -> str:
    """Yield the known facts; GraphML has no null."""
    known = ((key, value) for key, value in facts.items() if value is not None)
    return "".join(f'<data key="{key}">{_text(value)}</data>' for key, value in known)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else escape(plain(str(value)))


def _attribute(text: str) -> str:
    return quoteattr(plain(text))
