"""The graph without the operations that only give a tensor another shape."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.graph import AutogradGraph, GraphNode

#: What changes neither numbers nor which of them there are, without the version in its name.
_VIEWS = frozenset(
    [
        "AliasBackward",
        "ExpandBackward",
        "MkldnnReshapeBackward",
        "PermuteBackward",
        "ReshapeAliasBackward",
        "SqueezeBackward",
        "TBackward",
        "TransposeBackward",
        "UnsafeViewBackward",
        "UnsqueezeBackward",
        "ViewBackward",
    ]
)


def without_views(graph: AutogradGraph) -> tuple[AutogradGraph, int]:
    """The graph in which arrows pass over views and transposes, and how many these are.

    The first node stays, whatever it is, and so does what leads to more or less than one other.
    """
    onward: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        heads = [edge for edge in node.to if edge is not None]
        if node.id != graph.root and _is_view(node) and len(heads) == 1 and not node.inner:
            onward[node.id] = heads[0]

    def past(edge: tuple[int, int] | None) -> tuple[int, int] | None:
        while edge is not None and edge[0] in onward:
            edge = onward[edge[0]]
        return edge

    kept = tuple(
        replace(node, to=tuple(map(past, node.to))) for node in graph.nodes if node.id not in onward
    )
    return replace(graph, nodes=kept), len(onward)


def _is_view(node: GraphNode) -> bool:
    return node.kind == "function" and node.op.rstrip("0123456789") in _VIEWS
