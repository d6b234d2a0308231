"""Makes the boxes, arrows and clusters of an AutogradGraph and a view, for all pictures.

Omissions and merges are decided here, before the layout; the formats only write the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import Flow, read_flow
from gradscope.diagrams.graph.groups import (
    Group,
    below,
    grouped,
    opened,
    operations_below,
    shorten,
    shown,
    sizes,
)
from gradscope.diagrams.graph.lookup import between
from gradscope.diagrams.picture.boxes import (
    LEAF,
    Arrow,
    Box,
    Cluster,
    Drawing,
    Scale,
    begins,
    caption,
    cluster_label,
    group_lines,
    group_title,
    height,
    leaf_lines,
    node_lines,
    node_title,
    scale,
    signs,
)
from gradscope.records.graph import AutogradGraph, GraphNode

#: Largest number of boxes that a reader can follow, and the smallest that a drawing is reduced to.
LIMITS = (150, 90, 60, 40, 25, 15, 8)
#: Largest size of a page that can be scrolled without getting lost, in points.
_TALL = 2900.0


def draw(graph: AutogradGraph, view: GraphView, *, limit: int = LIMITS[0]) -> Drawing:
    """Return the drawing for a view: everything, the requested depth, or the deepest readable one.

    Raises:
        OptionError: a name in the view is not in the graph, or there is no path.
    """
    graph = between(graph, view)
    if view.full:
        return _everything(graph, view)
    flow = read_flow(graph)
    root = grouped(graph, view, flow=flow)
    shorten(root, flow)
    for fewer in (n for n in LIMITS if n <= limit):
        drawing = _reduced(graph, view, root, flow, opened(root, graph, view, limit=fewer))
        chosen = view.depth is not None or bool(view.expand)
        if chosen or (len(drawing.boxes) <= 1.3 * fewer and _fits(drawing)):
            break
    return drawing


def _fits(drawing: Drawing) -> bool:
    """Return True if a reader can follow the arrows, and the drawing is not too long and narrow."""
    return len(drawing.arrows) <= 40 + 2 * len(drawing.boxes) and height(drawing) <= _TALL


def _everything(graph: AutogradGraph, view: GraphView) -> Drawing:
    """Draw every node as a box and every edge as an arrow, with both graphs of a reentrant
    checkpoint."""
    colors = scale(view.by, (_figure(view.by, node) for node in graph.nodes))
    marks = read_flow(graph).marks
    place = {node.id: i for i, node in enumerate(graph.nodes)}
    boxes = tuple(
        _operation(node, (), None, None, colors, marks.get(node.id)) for node in graph.nodes
    )
    edges = tuple(
        Arrow(place[node.id], place[edge[0]])
        for node in graph.nodes
        for edge in (*node.to, *node.inner)
        if edge is not None
    )
    return _captioned(Drawing("", (), boxes, edges, (), full=True), graph, view, colors)


def _reduced(
    graph: AutogradGraph,
    view: GraphView,
    root: Group,
    flow: Flow,
    is_open: Callable[[Group], bool],
) -> Drawing:
    assignment = assigned(root, is_open)
    place_leaves(assignment, flow)
    nodes = flow.nodes
    parts = (nodes[p] if isinstance(p, int) else p for p, _ in assignment.shown)
    colors = scale(view.by, (_figure(view.by, part) for part in parts))
    boxes = []
    for i, (part, cluster) in enumerate(assignment.shown):
        if isinstance(part, Group):
            boxes.append(_closed(part, cluster, colors))
        else:
            around = _name(assignment.clusters[cluster][0]) if cluster is not None else None
            used = tuple(nodes[leaf] for leaf in assignment.leaves.get(i, ()))
            mark = flow.marks.get(part)
            shapes = sizes(flow, part)
            boxes.append(_operation(nodes[part], used, cluster, around, colors, mark, shapes))
    drawing = Drawing(
        "",
        (),
        tuple(boxes),
        tuple(Arrow(tail, head, n) for (tail, head), n in arrows(assignment, flow).items()),
        tuple(
            Cluster(cluster_label(g), group_title(g), parent, depth)
            for g, parent, depth in assignment.clusters
        ),
    )
    return _captioned(drawing, graph, view, colors)


def _captioned(drawing: Drawing, graph: AutogradGraph, view: GraphView, colors: Scale) -> Drawing:
    """Return the drawing with its caption."""
    title, notes = caption(graph)
    return replace(
        drawing,
        title=title,
        notes=(*notes, *signs(drawing, view)),
        bar=colors.bar(),
        ticks=colors.ticks(),
        legend=colors.legend(box.fill for box in drawing.boxes),
        by=view.by,
        direction=view.direction,
    )


def _name(group: Group) -> str | None:
    """Return the module's name; for a fold, the first member's, whose boxes it shows."""
    return group.members[0].name if group.members else group.name


def _figure(by: str, part: GraphNode | Group) -> float | None:
    return part.grad_norm if by == "gradient" else part.saved_bytes


def _closed(group: Group, cluster: int | None, colors: Scale) -> Box:
    return Box(
        id=f"g:{group.key}",
        kind="repeats" if group.times > 1 else "group",
        lines=group_lines(group),
        title=group_title(group),
        fill=colors.fill(_figure(colors.by, group), group.nonfinite),
        cluster=cluster,
        mark=group.mark or next(iter(group.within), None),
    )


def _operation(
    node: GraphNode,
    leaves: tuple[GraphNode, ...],
    cluster: int | None,
    around: str | None,
    colors: Scale,
    mark: str | None,
    shapes: str | None = None,
) -> Box:
    leaf = node.kind != "function"
    lines = leaf_lines(node) if leaf else node_lines(node, leaves, around, shapes)
    fill = colors.fill(_figure(colors.by, node), node.grad_nonfinite or 0)
    return Box(
        id=f"n{node.id}",
        kind=node.kind if leaf else "operation",
        lines=(*lines, *begins(mark)),
        title=node_title(node),
        fill=LEAF if leaf and colors.by == "saved" else fill,
        cluster=cluster,
        node=node.id,
        mark=mark,
    )


def coarser(drawing: Drawing, view: GraphView) -> GraphView | None:
    """Return the view for a smaller drawing; None if there is none."""
    if view.full:
        return replace(view, full=False, depth=None, expand=())
    if drawing.depth > 1:
        return replace(view, depth=drawing.depth - 1, expand=())
    return None


#: A parameter that several boxes use is a box itself, unless its arrows would cover the drawing.
_SHARED = 6
#: If a graph has more inputs, those with a single consumer are drawn in its box.
_INPUTS = 40


@dataclass(slots=True)
class Assignment:
    """The assignment of a graph to a drawing: boxes, frames, each operation's box and repeats."""

    shown: list[tuple[Group | int, int | None]] = field(default_factory=list)
    clusters: list[tuple[Group, int | None, int]] = field(default_factory=list)
    where: dict[int, int] = field(default_factory=dict)
    repeats: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    leaves: dict[int, list[int]] = field(default_factory=dict)


def assigned(root: Group, is_open: Callable[[Group], bool]) -> Assignment:
    """Assign groups to frames and boxes, and each operation to its box."""
    assignment = Assignment()
    todo: list[tuple[Group | int, int | None, int]] = [(p, None, 0) for p in reversed(root.parts)]
    while todo:
        part, cluster, depth = todo.pop()
        if isinstance(part, Group) and is_open(part):
            assignment.clusters.append((part, cluster, depth))
            inside = len(assignment.clusters) - 1
            todo += [(p, inside, depth + 1) for p in reversed(part.parts)]
        else:
            assignment.shown.append((part, cluster))
    place = {id(p) if isinstance(p, Group) else p: i for i, (p, _) in enumerate(assignment.shown)}
    for operation, stands in shown(root, is_open).items():
        assignment.where[operation] = place[id(stands) if isinstance(stands, Group) else stands]
    for group in below(root):
        for i, member in enumerate(group.members):
            for operation in operations_below(member):
                before = assignment.repeats.get(operation, ())
                assignment.repeats[operation] = (*before, (group.key, i))
    return assignment


def place_leaves(assignment: Assignment, flow: Flow) -> None:
    """Place leaves in the box that uses them; shared ones and inputs get their own box."""
    users: dict[int, list[int]] = {}
    for operation, leaves in flow.leaves.items():
        for leaf in leaves:
            users.setdefault(leaf, []).append(operation)
    inputs = sum(1 for leaf in users if flow.nodes[leaf].kind == "input")
    for leaf, operations in users.items():
        separate = flow.nodes[leaf].kind == "input" and inputs <= _INPUTS
        boxes = {assignment.where[operation] for operation in operations}
        if separate or 2 <= len(boxes) <= _SHARED:
            assignment.where[leaf] = len(assignment.shown)
            assignment.shown.append((leaf, None))
            continue
        firsts = (n for n in operations if not any(i for _, i in assignment.repeats.get(n, ())))
        for box in dict.fromkeys(assignment.where[operation] for operation in firsts):
            assignment.leaves.setdefault(box, []).append(leaf)


def arrows(assignment: Assignment, flow: Flow) -> dict[tuple[int, int], int]:
    """Yield the arrows between boxes; several between two boxes become one with their number."""
    counts: Counter[tuple[int, int]] = Counter()
    for tail in flow.order:
        for head in flow.onward[tail]:
            ends = assignment.where.get(tail), assignment.where.get(head)
            # Parts inside a closed group are in its count of operations.
            if None in ends or ends[0] == ends[1] or _repeated(assignment, tail, head):
                continue
            counts[ends] += 1  # type: ignore[index]
    return counts


def _repeated(assignment: Assignment, tail: int, head: int) -> bool:
    """Return True if the arrow joins two repeats, or the first repeat already has it."""
    ours, theirs = dict(assignment.repeats.get(tail, ())), dict(assignment.repeats.get(head, ()))
    return any(key in theirs and (place != theirs[key] or place > 0) for key, place in ours.items())
