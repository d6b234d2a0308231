"""The reduction of a graph by the modules that made it: groups, repeats folded, figures.

Every format draws groups; ``opened`` says which of them a reader sees from inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gradscope.diagrams.graph.figures import fill
from gradscope.diagrams.graph.flow import Flow, read_flow
from gradscope.diagrams.graph.folding import fold
from gradscope.diagrams.graph.group import Group, below, operations_below
from gradscope.diagrams.graph.grouping import bundle, expand, selected, tree
from gradscope.diagrams.graph.view import GraphView
from gradscope.records.graph import AutogradGraph

__all__ = ["Group", "below", "grouped", "opened", "operations_below", "shown"]

#: Graphs of up to so many operations show them all, unless a depth is asked for.
SMALL = 40
#: As many operations of its own are beside a group's parts; more make one group of theirs.
OWN = 24


def grouped(
    graph: AutogradGraph,
    view: GraphView | None = None,
    *,
    own: int = OWN,
    flow: Flow | None = None,
) -> Group:
    """The full graph as one group: the model's, beside operations outside every module.

    With a view, ``full`` folds nothing and ``expand`` keeps separate what it names. More operations
    of a group's own than ``own`` become one part beside others, those of the outermost group also
    where there are no others. ``flow`` saves reading the graph a second time.

    Raises:
        LayerError: a pattern of ``view.expand`` names no module of the graph.
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
    """Which groups are shown open.

    ``full`` opens all, ``expand`` what it names and all around it; ``depth`` that many levels of
    modules. Without a depth: everything where that makes at most ``limit`` rows or the graph is
    small, else the deepest level that does (the first at least). What ``layers`` does not name
    stays closed, unless it holds what it names. The outermost one is always open.
    """
    allowed = selected(root, view.layers)
    if view.full or (view.depth is None and _opens_fully(root, limit)):
        return lambda group: id(group) in allowed or group.expanded
    leading = {id(root)}
    for group in reversed(list(below(root))):
        if (group.expanded or id(group) in leading) and group.parent is not None:
            leading.add(id(group.parent))

    def by(depth: int) -> tuple[set[int], int, bool]:
        """The open groups at a depth, the rows that they make, whether a deeper one adds any."""
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
            # What was asked for comes on top: it closes nothing that is open without it.
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
    """For every operation what stands for it: itself, or the closed group that hides it.

    An open fold shows its first member; the others' operations are stood for by those of the first.
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
            inner = list(_unfolded(one for one in same if isinstance(one, Group)))
            if is_open(part):
                stack.append((part, inner))
            else:
                for one in inner:
                    places.update((op, part) for op in operations_below(one))
    return places


def _unfolded(groups: Iterable[Group]) -> Iterator[Group]:
    for group in groups:
        yield from group.members or [group]
