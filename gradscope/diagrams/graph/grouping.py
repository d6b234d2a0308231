"""Makes a tree of groups from the module calls, with containers that never ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.diagrams.graph.flow import Flow
from gradscope.patterns import Named, Pattern, matching
from gradscope.records.graph import AutogradGraph, GraphCall
from gradscope.typeset.text import plain


@dataclass(slots=True, eq=False)
class Group:
    """Holds the operations of one module call, and the groups of the calls inside it.

    ``parts`` has groups and ids of operations, nearest to the root first. A fold represents
    ``times`` equal groups, ``members``. Each leads to the next, or with ``parallel`` none leads to
    another. Its ``parts`` are those of the first. ``name`` is None for operations outside of
    modules, and for a module's own operations. ``key`` is unique and stable: ``layer1/0/conv1``,
    ``cell#2``.

    Figures count everything below; of a fold, all members. ``leaves`` and ``parameters`` (elements)
    count those that are first reached from inside; ``saved_bytes`` counts each storage once.
    ``grad_norm`` is the norm of the gradient that enters (of a fold: its first member), with the
    range over all members in ``grad_low`` and ``grad_high``. ``mark`` is the frontier at this group
    (zero, missing, nonfinite), ``within`` has the frontiers inside.
    """

    key: str
    label: str
    name: str | None = None
    type: str | None = None
    parent: Group | None = None
    parts: list[Group | int] = field(default_factory=list)
    times: int = 1
    members: list[Group] = field(default_factory=list)
    parallel: bool = False
    expanded: bool = False
    ops: int = 0
    leaves: int = 0
    parameters: int = 0
    saved_bytes: int | None = None
    grad_norm: float | None = None
    grad_low: float | None = None
    grad_high: float | None = None
    nonfinite: int = 0
    mark: str | None = None
    within: tuple[str, ...] = ()

    @property
    def repeats(self) -> str:
        """Return the label's suffix for repeats: `` ×12``, `` ×4, side by side``."""
        if self.times == 1:
            return ""
        return f" ×{self.times}" + (", side by side" if self.parallel else "")

    def groups(self) -> Iterator[Group]:
        """The parts that are groups."""
        return (part for part in self.parts if isinstance(part, Group))

    def operations(self) -> Iterator[int]:
        """Return the parts that are operations, not groups."""
        return (part for part in self.parts if isinstance(part, int))


def below(group: Group) -> Iterator[Group]:
    """Yield a group and all groups below it, parents first, with all members of folds."""
    stack = [group]
    while stack:
        one = stack.pop()
        yield one
        stack += reversed(one.members or list(one.groups()))


def operations_below(group: Group) -> Iterator[int]:
    """Yield the ids of all operations in a group; of a fold, in all members."""
    for one in below(group):
        if not one.members:
            yield from one.operations()


#: The outermost group of a graph upstream of the loss.
LOSS = "(loss)"


class _Builder:
    """Makes each group at its first operation, so that parts come in that order."""

    def __init__(self, graph: AutogradGraph) -> None:
        start = plain(graph.start) or "graph"
        self.root = Group("", LOSS if start == "loss" else f"({start})")
        self._calls = list(graph.calls)
        self._index = {(call.name, call.call): i for i, call in enumerate(self._calls)}
        self._several = Counter(call.name for call in self._calls)
        self._made: dict[int, Group] = {-1: self.root}
        self._containers: dict[tuple[int, str], Group] = {}
        self._keys: set[str] = {""}

    def of(self, module: str | None, call: int | None) -> Group:
        """Return the group of an operation's innermost call."""
        if module is None:
            return self.root
        place = (module, call or 0)
        if place not in self._index:  # a damaged file: the call is not listed
            self._index[place] = len(self._calls)
            self._calls.append(GraphCall(module, call or 0, ""))
        chain: list[int] = []
        i = self._index[place]
        while i not in self._made:
            chain.append(i)
            parent = self._calls[i].parent
            i = parent if 0 <= parent < i else -1
        for i in reversed(chain):
            self._made[i] = self._make(i)
        return self._made[self._index[place]]

    def _make(self, i: int) -> Group:
        call = self._calls[i]
        around = self._made[call.parent if 0 <= call.parent < i else -1]
        if call.name == "":
            return self._add(around, call.type or "model", "", call)
        prefix = f"{around.name}." if around.name else ""
        if not call.name.startswith(prefix):
            return self._add(around, call.name, call.name, call)
        *outer, last = call.name.removeprefix(prefix).split(".")
        for part in outer:
            name = f"{prefix}{part}"
            found = self._containers.get((id(around), name))
            if found is None:
                found = self._add(around, part, name, None)
                self._containers[id(around), name] = found
            around, prefix = found, f"{name}."
        return self._add(around, last, call.name, call)

    def _add(self, around: Group, label: str, name: str, call: GraphCall | None) -> Group:
        several = call is not None and self._several[call.name] > 1
        # The model's own name would be before everything.
        bare = around is self.root or (around.name == "" and self._several[""] < 2)
        key = label if bare else f"{around.key}/{label}"
        if several and call is not None:
            key, label = f"{key}#{call.call}", f"{label} #{call.call}"
        while key in self._keys:  # a container that is also a call, a module called from afar
            key += "'"
        self._keys.add(key)
        group = Group(key, plain(label), name, (call.type or None) if call else None, around)
        around.parts.append(group)
        return group


def tree(graph: AutogradGraph, flow: Flow) -> tuple[Group, dict[int, Group]]:
    """Return the outermost group, and the innermost group of every operation."""
    builder = _Builder(graph)
    homes: dict[int, Group] = {}
    for id in flow.order:
        node = flow.nodes[id]
        if node.kind == "function" or id not in flow.home:
            group = builder.of(node.module, node.call)
            group.parts.append(id)
            homes[id] = group
    return builder.root, homes


def expand(root: Group, patterns: tuple[str, ...]) -> None:
    """Note which groups ``--expand`` names, and all below them."""
    if not patterns:
        return
    types: dict[str, str | None] = {}
    for group in below(root):
        if group.name is not None:
            types.setdefault(group.name, group.type)
    named = [Named(name, (), (kind,) if kind else ()) for name, kind in types.items()]
    chosen = {one.name for one in matching(patterns, named, what="module of the graph")}
    for group in below(root):
        around = group.parent is not None and group.parent.expanded
        group.expanded = around or group.name in chosen


def selected(root: Group, patterns: tuple[str, ...]) -> set[int]:
    """Return the groups that ``--layers`` names, and the groups around these, by ``id``.

    The patterns were checked against the full model, so a pattern may match nothing here.
    """
    parsed = [Pattern(text) for text in patterns]
    order = list(below(root))
    found = {id(root)}
    for group in order:
        if group.name is None:  # operations without their own module
            if id(group.parent) in found:
                found.add(id(group))
            continue
        named = Named(group.name, (), (group.type,) if group.type else ())
        for pattern in reversed(parsed):
            if pattern.matches(named):
                if not pattern.negated:
                    found.add(id(group))
                break
    for group in reversed(order):
        if id(group) in found and group.parent is not None:
            found.add(id(group.parent))
    return found


def bundle(root: Group, homes: dict[int, Group], own: int) -> None:
    """Put a group's direct operations into a new group, if there are more than ``own``.

    This changes groups that also hold other groups, and the outermost group.
    """
    for group in list(below(root)):
        count = sum(1 for _ in group.operations())
        alone = count == len(group.parts)
        if count <= own or group.expanded or (alone and group is not root):
            continue
        if alone:
            _gather(group, homes, 0, "(operations)")
            continue
        first = next(i for i, part in enumerate(group.parts) if isinstance(part, Group))
        if group is not root:
            _gather(group, homes, 0, "(its own operations)")
            continue
        _gather(group, homes, first, "(outside modules)")
        if first > own:  # parts are in the order of backward
            after = "(operations of the loss)" if group.label == LOSS else "(after the model)"
            _gather(group, homes, 0, after, first)


def _gather(
    group: Group, homes: dict[int, Group], start: int, label: str, stop: int | None = None
) -> None:
    within = group.parts[start:stop]
    ids = [part for part in within if isinstance(part, int)]
    if len(ids) < 2:
        return
    made = Group(f"{group.key}/{label}" if group.key else label, label, parent=group)
    made.parts.extend(ids)
    homes.update((id, made) for id in ids)
    at = start + within.index(ids[0])
    rest = [part for part in within if isinstance(part, Group)]
    group.parts[start:stop] = rest
    group.parts.insert(at, made)
