"""Reduces a graph to groups by module: folds repeats, names groups, cuts long rows; and computes
the figures of groups: counts, saved bytes, the gradient that enters, frontiers.

Every format draws groups; ``opened`` says which of them are open. A group with hundreds of parts
does not fit a screen, so it is cut into rows of parts. A picture shows such rows as boxes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import MISSING, NONFINITE, ZERO, Flow, Span, read_flow
from gradscope.diagrams.graph.grouping import (
    Group,
    below,
    bundle,
    expand,
    fold,
    operations_below,
    selected,
    tree,
)
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.typeset.numbers import count, shape
from gradscope.typeset.text import plain


def fill(root: Group, flow: Flow, homes: dict[int, Group]) -> None:
    """Compute every group's figures; linear in nodes times the depth of modules."""
    order = list(below(root))
    _count(order, flow, homes)
    _saved(order, flow, homes)
    _enter(flow, homes)
    for group in reversed(order):
        if group.members:
            _range(group)
    _fill_within(order, flow, homes)


def _upwards(group: Group | None) -> Iterator[Group]:
    while group is not None:
        yield group
        group = group.parent


def _count(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    for id, group in homes.items():
        if not flow.is_leaf(id):
            group.ops += 1
    leaves = [(leaf, homes[op]) for leaf, op in flow.home.items()]
    leaves += [(id, group) for id, group in homes.items() if flow.is_leaf(id)]
    for leaf, group in leaves:
        node = flow.nodes[leaf]
        group.leaves += 1
        if node.kind == "parameter" and node.shape is not None:
            group.parameters += math.prod(node.shape)
    for group in reversed(order):
        if group.parent is not None:
            group.parent.ops += group.ops
            group.parent.leaves += group.leaves
            group.parent.parameters += group.parameters


def _saved(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    """Sum each storage once in every group that holds it; None if nothing could be read."""
    storages: dict[int, tuple[int, dict[int, Group]]] = {}
    for id_, group in homes.items():
        node = flow.nodes[id_]
        if node.saved_bytes is None:
            continue
        # A record without the list of tensors still has the sum.
        group.saved_bytes = (group.saved_bytes or 0) + (0 if node.saved else node.saved_bytes)
        for tensor in node.saved:
            storages.setdefault(tensor.storage, (tensor.bytes, {}))[1][id(group)] = group
    for group in reversed(order):
        if group.parent is not None and group.saved_bytes is not None:
            group.parent.saved_bytes = (group.parent.saved_bytes or 0) + group.saved_bytes
    for size, groups in storages.values():
        counted: set[int] = set()
        for group in groups.values():
            for one in _upwards(group):
                if id(one) in counted:
                    break
                counted.add(id(one))
                one.saved_bytes = (one.saved_bytes or 0) + size


def entries(flow: Flow, homes: dict[int, Group]) -> dict[int, tuple[Group, list[int]]]:
    """Return for each group, by ``id``, its operations with consumers outside of it, and the
    root."""
    depths: dict[int, int] = {}
    for group in dict.fromkeys(homes.values()):
        for level, one in enumerate(reversed(list(_upwards(group)))):
            depths[id(one)] = level
    found: dict[int, tuple[Group, list[int]]] = {}
    for id_, group in homes.items():
        outside = depths[id(group)]
        if id_ == flow.root or id_ not in flow.consumers:
            outside = -1
        for consumer in flow.consumers.get(id_, ()):
            outside = min(outside, _shared(homes[consumer], group, depths))
        for one in _upwards(group):
            if depths[id(one)] <= outside:
                break
            found.setdefault(id(one), (one, []))[1].append(id_)
    return found


def _enter(flow: Flow, homes: dict[int, Group]) -> None:
    """Set the gradient that enters each group."""
    for group, ids in entries(flow, homes).values():
        nodes = [flow.nodes[id_] for id_ in ids]
        norms = [node.grad_norm for node in nodes if node.grad_norm is not None]
        # If only the sum overflows, the result is not Inf, which would look like a broken gradient.
        group.grad_norm = min(math.hypot(*norms), sys.float_info.max) if norms else None
        group.nonfinite = sum(node.grad_nonfinite for node in nodes)
        marks = {flow.marks.get(id_) for id_ in ids}
        state = NONFINITE if group.nonfinite else _state(group.grad_norm)
        group.mark = state if state in marks else None


def _state(norm: float | None) -> str | None:
    if norm is None:
        return MISSING
    return ZERO if norm == 0 else None


def _shared(one: Group, other: Group, depths: dict[int, int]) -> int:
    """Return the depth of the innermost group around both."""
    while one is not other:
        deeper = depths[id(one)] - depths[id(other)]
        if deeper >= 0 and one.parent is not None:
            one = one.parent
        if deeper <= 0 and other.parent is not None:
            other = other.parent
    return depths[id(one)]


def _range(group: Group) -> None:
    """Show a fold as its first member's gradient, and the range over all."""
    first = group.members[0]
    norms = [one.grad_norm for one in group.members if one.grad_norm is not None]
    group.grad_norm, group.nonfinite, group.mark = first.grad_norm, first.nonfinite, first.mark
    if norms:
        group.grad_low, group.grad_high = min(norms), max(norms)


def _fill_within(order: list[Group], flow: Flow, homes: dict[int, Group]) -> None:
    """Note the marks inside each group, except its own."""
    inside: dict[int, set[str]] = {id(group): set() for group in order}
    for place, mark in flow.marks.items():
        inside[id(homes[flow.home.get(place, place)])].add(mark)
    for group in reversed(order):
        if group.parent is not None:
            inside[id(group.parent)] |= inside[id(group)]
        group.within = tuple(sorted(inside[id(group)] - {group.mark or ""}))


def saved_bytes(nodes: Sequence[GraphNode]) -> int | None:
    """Return the bytes that nodes keep, each storage once; None if none could be read."""
    readable = [node for node in nodes if node.saved_bytes is not None]
    storages = {tensor.storage: tensor.bytes for node in readable for tensor in node.saved}
    # A record without the list of tensors still has the sum.
    unlisted = sum(node.saved_bytes or 0 for node in readable if not node.saved)
    return sum(storages.values()) + unlisted if readable else None


__all__ = ["Group", "below", "grouped", "opened", "operations_below", "shown"]

#: Graphs of up to this many operations show them all, unless a depth is asked for.
SMALL = 40
#: Largest number of operations beside a group's parts; more form a group.
OWN = 24


def grouped(
    graph: AutogradGraph,
    view: GraphView | None = None,
    *,
    own: int = OWN,
    flow: Flow | None = None,
) -> Group:
    """Return the full graph as one group, with the model and the operations outside of it.

    ``view.full`` folds nothing, and ``view.expand`` keeps the named groups separate. If a group has
    more than ``own`` direct operations, they become one part. Pass ``flow`` to avoid reading the
    graph again.

    Raises:
        LayerError: a pattern of ``view.expand`` matches no module of the graph.
    """
    flow = flow or read_flow(graph)
    view = view or GraphView()
    root, homes = tree(graph, flow)
    expand(root, view.expand)
    if not view.full:
        if sum(1 for node in flow.nodes.values() if node.kind == "function") > SMALL:
            bundle(root, homes, own)
        fold(root, flow)
    fill(root, flow, homes)
    return root


def opened(
    root: Group, graph: AutogradGraph, view: GraphView, *, limit: int
) -> Callable[[Group], bool]:
    """Return a function that is True for groups to show open.

    ``full`` opens all groups; ``expand`` opens the named groups and those around them; ``depth``
    opens that many levels of modules. Without a depth, all groups are open if they make at most
    ``limit`` rows, or if the graph is small. Otherwise the deepest level that fits is open, at
    least the first. A group outside of ``layers`` stays closed, unless it contains one of them. The
    outermost group is always open.
    """
    allowed = selected(root, view.layers)
    if view.full or (view.depth is None and _opens_fully(root, limit)):
        return lambda group: id(group) in allowed or group.expanded
    leading = {id(root)}
    for group in reversed(list(below(root))):
        if (group.expanded or id(group) in leading) and group.parent is not None:
            leading.add(id(group.parent))

    def by(depth: int) -> tuple[set[int], int, bool]:
        """Return the open groups at a depth, their rows, and whether a deeper level adds any."""
        found: set[int] = set()
        rows, deeper = 0, False
        stack = [(root, -1)]
        while stack:
            group, level = stack.pop()
            held = id(group) in allowed and any(True for _ in group.groups())
            usual = group is root or (held and level < depth)
            if not (usual or group.expanded or id(group) in leading):
                deeper = deeper or held
                continue
            found.add(id(group))
            # Requested groups come on top: they close no group that is open without them.
            rows += len(group.parts) if usual else 0
            stack += [(part, level + 1) for part in group.groups()]
        return found, rows, deeper

    if view.depth is not None:
        chosen = by(view.depth)[0]
    else:
        chosen, _, deeper = by(1)
        depth = 1
        while deeper:
            depth += 1
            further, rows, deeper = by(depth)
            if rows > limit:
                break
            chosen = further
    return lambda group: id(group) in chosen


def _opens_fully(root: Group, limit: int) -> bool:
    if root.ops <= min(limit, SMALL):
        return True
    rows = 0
    stack = [root]
    while stack and rows <= limit:
        group = stack.pop()
        rows += len(group.parts)
        stack += group.groups()
    return rows <= limit


def shown(root: Group, is_open: Callable[[Group], bool]) -> dict[int, Group | int]:
    """Map every operation to its display: itself, or the closed group that hides it.

    An open fold shows its first member, whose operations represent those of the others.
    """
    places: dict[int, Group | int] = {}
    stack: list[tuple[Group, list[Group]]] = [(root, root.members or [root])]
    while stack:
        group, alike = stack.pop()
        for i, part in enumerate(group.parts):
            same = [one.parts[i] for one in alike]
            if isinstance(part, int):
                places.update((op, part) for op in same if isinstance(op, int))
                continue
            groups = [one for one in same if isinstance(one, Group)]
            inner = [member for one in groups for member in one.members or [one]]
            if is_open(part):
                stack.append((part, inner))
            else:
                for one in inner:
                    places.update((op, part) for op in operations_below(one))
    return places


def title(node: GraphNode) -> str:
    """Return a node's title: its operation, or a leaf's name."""
    if node.kind == "function":
        return plain(node.op)
    return plain(node.name) if node.name else f"(unnamed {node.kind})"


def operation(node: GraphNode) -> str:
    """Return a node's title; a leaf has its shape too."""
    bare = node.kind == "function" or node.shape is None
    return title(node) if bare else f"{title(node)} {shape(node.shape or ())}"


def ranges(span: Span) -> str:
    """Return a shape with ranges for dimensions that differ: ``[7…9, 16]``."""
    sizes = (str(low) if low == high else f"{low}…{high}" for low, high in span)
    return f"[{', '.join(sizes)}]"


def sizes(flow: Flow, id: int) -> str:
    """Return the displayed shape of an operation or leaf; empty if unknown, or if shapes have no
    common range."""
    if id in flow.spans:
        span = flow.spans[id]
        return "" if span is None else ranges(span)
    found = flow.nodes[id].shape
    return "" if found is None else shape(found)


def start(graph: AutogradGraph) -> str:
    """Return the start of the graph as part of a sentence."""
    return "the loss" if graph.start == "loss" else plain(graph.start)


def label(group: Group) -> str:
    """Return a group's label."""
    return f"{group.label}{group.repeats}"


def dotted(group: Group) -> str:
    """Return a group's full name: ``layer1.0``, ``h.1 … 95 ×95``, ``cell #2``."""
    text = label(group)
    name = plain(group.name or "")
    around = name.rpartition(".")[0]
    return f"{around}.{text}" if around and not text.startswith(f"{around}.") else text


def chain(
    path: Sequence[int], root: Group, flow: Flow, is_open: Callable[[Group], bool]
) -> Iterator[str]:
    """Yield the stations of a path, with a closed module for its contents."""

    def entered(group: Group) -> bool:
        held = group.name == "" or any(True for _ in group.groups())
        return group is root or (held and group.times == 1 and is_open(group))

    places = shown(root, entered)
    last: Group | int | None = None
    for id in path:
        place = places.get(id, id)
        if place is not last or isinstance(place, int):
            yield dotted(place) if isinstance(place, Group) else operation(flow.nodes[place])
        last = place


#: A group with more parts than this is cut into rows of parts.
LONG = 120
#: At most this many rows.
ROWS = 40


def rows(group: Group, flow: Flow) -> list[Group | int]:
    """Return a group's members or parts; many of them are divided into groups."""
    parts: list[Group | int] = [*group.members] if group.members else group.parts
    n = len(parts)
    if n <= LONG:
        return parts
    # Rows have nearly equal sizes on every level: 7,505 parts are 20 rows of 20 rows of up to 20
    # parts.
    levels = math.ceil(math.log(n, ROWS))
    length = math.ceil(n ** ((levels - 1) / levels))
    return [_row(group, parts[i : i + length], i, flow) for i in range(0, n, length)]


def _row(group: Group, parts: list[Group | int], start: int, flow: Flow) -> Group:
    labels = [part.label for part in parts if isinstance(part, Group)]
    label = f"parts {count(start + 1)} … {count(start + len(parts))}"
    if len(labels) == len(parts):
        label = f"{labels[0]} … {labels[-1]}"
    row = Group(f"{group.key}/{start}…{start + len(parts) - 1}", label, parent=group, parts=parts)
    first = parts[0]
    row.type = group.type if group.members else None
    # The gradient that enters a row is the one that enters its first part.
    row.grad_norm = first.grad_norm if isinstance(first, Group) else flow.nodes[first].grad_norm
    row.parameters = sum(part.parameters for part in parts if isinstance(part, Group))
    own = [flow.nodes[id] for id in operations_below(row)]
    row.ops = len(own)
    row.nonfinite = sum(node.grad_nonfinite or 0 for node in own)
    row.saved_bytes = saved_bytes(own)
    row.within = _within(parts, flow)
    return row


def _within(parts: list[Group | int], flow: Flow) -> tuple[str, ...]:
    """Return the marks at or inside any of the parts."""
    found: set[str | None] = set()
    for part in parts:
        if isinstance(part, Group):
            found |= {part.mark, *part.within}
        else:
            found.add(flow.marks.get(part))
            own = (leaf for leaf in flow.leaves.get(part, ()) if flow.home[leaf] == part)
            found |= {flow.marks.get(leaf) for leaf in own}
    return tuple(sorted(mark for mark in found if mark))


def shorten(root: Group, flow: Flow) -> None:
    """Replace every long row of modules by groups; groups in ``--expand`` stay."""
    groups = list(below(root))
    for group in groups:  # grows while it is read: a long row may be cut into long ones
        held = any(True for _ in group.groups())
        if held and not group.members and not group.expanded:
            parts = rows(group, flow)
            if parts is not group.parts:
                group.parts = parts
                groups += group.groups()
    for group in reversed(groups):
        if group.members:  # its parts are those of the first
            group.parts = group.members[0].parts
