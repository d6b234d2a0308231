"""Makes the data of the page's script: operations, groups, and which are open at first.

A group's ``parts`` are ids of operations (0 and up) and of groups (-1 for the first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradscope.diagrams.graph.figures import saved_bytes
from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group, opened, operations_below, rows
from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture import boxes
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.records.tensors import finite_or_none
from gradscope.typeset.numbers import count
from gradscope.typeset.text import plain


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups, outer ones first, with the index of each one's parent (-1 for the first).

    ``parts`` has the content of each when it is open.
    """

    groups: list[Group] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    parts: list[list[Group | int]] = field(default_factory=list)


def tree(root: Group, flow: Flow, most: int | None) -> Tree:
    """Return all groups, or only the ``most`` nearest to the root."""
    found = Tree([root], [-1])
    for i, group in enumerate(found.groups):  # grows while it is read
        parts = rows(group, flow)
        found.parts.append(parts)
        inner = [part for part in parts if isinstance(part, Group)]
        if most is None or len(found.groups) + len(inner) <= most:
            found.groups.extend(inner)
            found.parents.extend([i] * len(inner))
    return found


#: Graphs of more nodes are embedded by groups, their operations counted.
MOST_NODES = 20_000
#: Number of groups embedded for such a graph.
MOST_GROUPS = 3_000
#: Boxes that the page draws at once.
LIMIT = 300
#: Boxes to which it opens folds on its own.
FIRST = 60
#: The pictures' colours; the ramp in its nine steps, between which the script mixes.
COLOURS = {
    "ramp": [boxes.ramp(i / 8) for i in range(9)],
    "ink": boxes.INK,
    "plain": boxes.PLAIN,
    "zero": boxes.ZERO,
    "missing": boxes.MISSING,
    "nonfinite": boxes.NONFINITE,
}


def embed(graph: AutogradGraph, view: GraphView, root: Group, flow: Flow) -> dict[str, Any]:
    """Return all data of the page's script."""
    complete = len(graph.nodes) <= MOST_NODES
    shown = tree(root, flow, None if complete else MOST_GROUPS)
    held = {id(group): i for i, group in enumerate(shown.groups)}
    entries = [_group(group, parts, held) for group, parts in zip_parts(shown)]
    if complete:
        calls = {(call.name, call.call): i for i, call in enumerate(graph.calls)}
        nodes = [_node(node, calls, flow) for node in graph.nodes]
    else:
        nodes = _bundles(shown, entries, held, flow)
    _open(shown, entries, opened(root, graph, view, limit=LIMIT // 2), view)
    return {
        "by": view.by,
        "colours": COLOURS,
        "limit": LIMIT,
        "complete": complete,
        "root": graph.root,
        "calls": [[plain(c.name), c.call, plain(c.type)] for c in graph.calls] if complete else [],
        "nodes": nodes,
        "groups": entries,
    }


def zip_parts(shown: Tree) -> Iterator[tuple[Group, list[Group | int]]]:
    """Yield each group with its shown parts."""
    return zip(shown.groups, shown.parts, strict=True)


def _group(group: Group, parts: list[Group | int], held: dict[int, int]) -> dict[str, Any]:
    facts = {
        "name": None if group.name is None else plain(group.name),
        "type": None if group.type is None else plain(group.type),
        "times": group.times if group.times > 1 else None,
        "parallel": group.parallel or None,
        "bytes": group.saved_bytes,
        "norm": finite_or_none(group.grad_norm),
        "low": finite_or_none(group.grad_low),
        "high": finite_or_none(group.grad_high),
        "nonfinite": group.nonfinite or None,
        "mark": group.mark,
    }
    places = (-1 - held[id(p)] if isinstance(p, Group) else p for p in parts if _known(p, held))
    return {
        "label": plain(group.label),
        **{key: value for key, value in facts.items() if value is not None},
        "parts": list(places),
        "ops": group.ops,
        "parameters": group.parameters,
    }


def _known(part: Group | int, held: dict[int, int]) -> bool:
    return isinstance(part, int) or id(part) in held


def _node(node: GraphNode, calls: dict[tuple[str, int], int], flow: Flow) -> dict[str, Any]:
    onward = flow.onward.get(node.id, ())
    plainly = tuple(end[0] for end in node.to if end is not None)
    facts = {
        "kind": None if node.kind == "function" else node.kind,
        "name": None if node.name is None else plain(node.name),
        "call": None if node.module is None else calls.get((node.module, node.call or 0)),
        "shape": node.shape,
        "bytes": node.saved_bytes,
        "norm": finite_or_none(node.grad_norm),
        "bad": node.grad_nonfinite or None,
        "saved": [[plain(t.name), t.shape, plain(t.dtype), t.bytes] for t in node.saved] or None,
        "inner": node.inner or None,
        # Targets of the arrows, if not simply `to`: through a reentrant checkpoint.
        "on": onward if onward != plainly else None,
        "at": None if node.location is None else plain(node.location),
    }
    present = {key: value for key, value in facts.items() if value is not None}
    return {"id": node.id, "op": plain(node.op), **present, "to": node.to}


def _bundles(
    shown: Tree, entries: list[dict[str, Any]], held: dict[int, int], flow: Flow
) -> list[dict[str, Any]]:
    """Return one entry for all operations of a group that are outside its embedded groups.

    Its id is that of its first operation; its ``to`` counts arrows: (bundle, how many).
    """
    home: dict[int, int] = {}
    bundles: list[list[int]] = []
    for (_, parts), entry in zip(zip_parts(shown), entries, strict=True):
        own = list(_own(parts, held))
        entry["parts"] = [part for part in entry["parts"] if part < 0] + own[:1]
        if own:
            bundles.append(own)
            home.update(dict.fromkeys(own, own[0]))
    places = {op: i for i, op in enumerate(flow.order)}
    bundles.sort(key=lambda own: places[own[0]])
    return [_bundle(own, home, flow) for own in bundles]


def _bundle(own: list[int], home: dict[int, int], flow: Flow) -> dict[str, Any]:
    nodes = [flow.nodes[op] for op in own]
    to = Counter(home[end] for op in own for end in flow.onward[op] if end in home)
    del to[own[0]]
    facts = {
        "bytes": saved_bytes(nodes),
        "norm": finite_or_none(nodes[0].grad_norm),
        "bad": sum(node.grad_nonfinite or 0 for node in nodes) or None,
        # Leaves have no box here: the search finds them by the one that uses them.
        "names": _leaf_names(own, flow) or None,
    }
    return {
        "id": own[0],
        "op": f"{count(len(own))} operations" if len(own) > 1 else plain(nodes[0].op),
        "kind": "bundle",
        **{key: value for key, value in facts.items() if value is not None},
        "to": sorted(to.items()),
    }


def _leaf_names(own: list[int], flow: Flow) -> list[str]:
    leaves = (flow.nodes[leaf].name for op in own for leaf in flow.leaves.get(op, ()))
    return [plain(name) for name in dict.fromkeys(leaves) if name]


def _own(parts: list[Group | int], held: dict[int, int]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, int):
            yield part
        elif id(part) not in held:
            yield from operations_below(part)


def _open(
    shown: Tree, entries: list[dict[str, Any]], wanted: Callable[[Group], bool], view: GraphView
) -> None:
    """Mark the groups open at first: those of the view, outer ones first, while there is room.

    A fold opens into its members, together with its first member. The page opens folds by default
    only if few boxes result.
    """
    boxes = len(entries[0]["parts"])
    entries[0]["open"] = True
    for i, group in enumerate(shown.groups):
        around = shown.parents[i]
        if around < 0 or "open" not in entries[around]:
            continue
        first = shown.groups[around].members[:1] == [group]
        asked = view.full or group.expanded
        own_account = first or bool(group.members)
        room = LIMIT if asked or view.depth is not None else FIRST if own_account else LIMIT // 2
        more = len(entries[i]["parts"]) - 1
        if (asked or first or wanted(group)) and 0 <= more <= room - boxes:
            entries[i]["open"] = True
            boxes += more
