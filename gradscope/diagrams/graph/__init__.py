"""Reduces an autograd graph to groups for every format; ``GraphView`` says what is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradscope.records.graph import AutogradGraph, GraphNode


def _left_out(notice: str) -> None:
    """Ignore a notice, without a page that handles it."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """Holds the display options of a graph: its parts, folds and width.

    ``width`` None is unlimited. ``layers`` has module-name patterns: other modules stay closed.
    ``depth`` None chooses the deepest readable level. ``expand`` has patterns of modules to show
    down to their operations. ``full`` shows every operation of every module and folds nothing.
    ``sources`` and ``targets`` select paths instead of the full graph. ``by`` is the quantity of
    colours and bars. ``direction`` is the direction of arrows in pictures, ``hidden`` the number of
    operations left out. A layout may take ``timeout`` seconds; ``say`` gets a notice if the drawing
    differs from the request.
    """

    width: int | None = None
    color: bool = False
    layers: tuple[str, ...] = ("**",)
    depth: int | None = None
    expand: tuple[str, ...] = ()
    full: bool = False
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    by: str = "gradient"  # gradient | saved
    direction: str = "TB"  # TB | LR
    hidden: int = 0
    timeout: float = 30.0
    say: Callable[[str], None] = _left_out


#: Operations that change neither numbers nor their selection, without the version in the name.
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
    """Return the graph without views and transposes, and their number.

    Arrows lead past them. The first node stays, and so does each node that leads to none or to
    several.
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
