"""Makes a tree of groups from the module calls, with containers that never ran, and folds equal
sibling groups into one group, if each leads to the next or if they are parallel.

Parallel groups may differ in shapes, such as the experts of a mixture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.diagrams.graph.flow import Flow, Span
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
        """Yield the parts that are groups."""
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


def fold(root: Group, flow: Flow) -> None:
    """Fold every sequence of equal siblings, and a container that holds only such a sequence.

    Siblings fold if each leads to the next and their shapes are equal, or if no path leads from one
    to another; then ``known.spans`` gets the ranges of shapes.
    """
    flow.spans.clear()
    structure = Structure(root, flow)
    for group in reversed(list(below(root))):
        groups = list(group.groups())
        runs = [part for run in _runs(groups, structure) for part in _parts(run, structure)]
        if len(runs) < len(groups):
            _replace(group, runs, structure)


def _runs(groups: list[Group], structure: Structure) -> list[list[Group]]:
    briefs = [structure.brief(group) for group in groups]
    runs: list[list[Group]] = []
    last: Signature | None = None
    for i, group in enumerate(groups):
        alone = briefs[i] not in (briefs[i - 1] if i else None, *briefs[i + 1 : i + 2])
        signature = None if alone else structure.signature(group)
        if signature is not None and signature == last and briefs[i] == briefs[i - 1]:
            runs[-1].append(group)
        else:
            runs.append([group])
        last = signature
    return runs


def _parts(run: list[Group], structure: Structure) -> list[list[Group]]:
    """Split a run of equal groups into chains; all stay together if no path leads from one to
    another."""
    if len(run) == 1:
        return [run]
    shapes = [structure.shapes(group) for group in run]
    chains = [[run[0]]]
    for i, group in enumerate(run[1:], 1):
        if shapes[i] == shapes[i - 1] and structure.leads(run[i - 1], group):
            chains[-1].append(group)
        else:
            chains.append([group])
    if len(chains) == len(run) and structure.independent(run):
        structure.widen(run)
        return [run]
    return chains


def _replace(group: Group, runs: list[list[Group]], structure: Structure) -> None:
    firsts = {id(run[0]): run for run in runs}
    parts: list[Group | int] = []
    for part in group.parts:
        if isinstance(part, int):
            parts.append(part)
        elif id(part) in firsts:
            run = firsts[id(part)]
            parts.append(part if len(run) == 1 else _folded(group, run, structure))
    group.parts = parts
    only = parts[0] if len(parts) == 1 else None
    if isinstance(only, Group) and only.times > 1 and group.name and not group.members:
        group.type, group.times, group.members = only.type, only.times, only.members
        group.parts, group.parallel = only.parts, only.parallel
        for member in group.members:
            member.parent = group


def _folded(group: Group, run: list[Group], structure: Structure) -> Group:
    first, last = run[0], run[-1]
    outer = sorted((first, last), key=lambda one: _numbers(one.label))
    ends = [outer[0].label, outer[1].label.removeprefix(f"{outer[0].label.split(' #')[0]} ")]
    label = (", " if len(run) == 2 else " … ").join(ends)
    full = Group(
        f"{first.key}…{last.key.rsplit('/', 1)[-1]}",
        label,
        first.name,
        first.type,
        group,
        first.parts,
        len(run),
        run,
        not structure.leads(run[0], run[1]),
        first.expanded,
    )
    for member in run:
        member.parent = full
    return full


def _numbers(label: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,18}", label)]


Signature = tuple[object, ...]


class Structure:
    """The operations of every group as a slice of one list; slices of equal groups have equal
    order."""

    def __init__(self, root: Group, flow: Flow) -> None:
        self._known = flow
        self._tokens: list[Group | int | None] = []
        self._spans: dict[int, tuple[int, int]] = {}
        self._place: dict[int, int] = {}
        self._ranks = {id: i for i, id in enumerate(flow.order)}
        stack: list[tuple[Group, bool] | int] = [(root, True)]
        while stack:
            item = stack.pop()
            if isinstance(item, int):
                self._place[item] = len(self._tokens)
                self._tokens.append(item)
                continue
            group, entering = item
            if not entering:
                self._tokens.append(None)
                self._spans[id(group)] = (self._spans[id(group)][0], len(self._tokens))
                continue
            self._spans[id(group)] = (len(self._tokens), 0)
            self._tokens.append(group)
            stack.append((group, False))
            stack += [(p, True) if isinstance(p, Group) else p for p in reversed(group.parts)]

    def brief(self, group: Group) -> Signature:
        """Return a cheap signature; equal groups have equal ones."""
        start, end = self._spans[id(group)]
        stem = re.sub(r"\d+", "0", group.label)
        return (stem, group.type, group.name is None, group.expanded, end - start)

    def signature(self, group: Group) -> Signature:
        """Return a signature of types, operations, edges inside the group and shapes of leaves."""
        start, end = self._spans[id(group)]
        tokens: list[object] = []
        for token in self._tokens[start:end]:
            if token is None:
                tokens.append(None)
            elif isinstance(token, Group):
                stem = token.label if token is not group else ""
                tokens.append((stem, token.type, token.expanded))
            else:
                tokens.append(self._operation(token, start, end))
        return tuple(tokens)

    def _operation(self, id: int, start: int, end: int) -> Signature:
        nodes, here = self._known.nodes, self._place[id]
        wires: list[object] = [nodes[id].op]
        for child in self._known.onward[id]:
            leaf = nodes[child]
            if leaf.kind != "function":
                wires.append((leaf.kind, leaf.shape))
            else:
                place = self._place[child]
                wires.append(place - here if start <= place < end else None)
        return tuple(wires)

    def _ids(self, group: Group) -> list[int]:
        start, end = self._spans[id(group)]
        return [token for token in self._tokens[start:end] if isinstance(token, int)]

    def shapes(self, group: Group) -> list[Span | None]:
        """Return the shape of each of its operations, or the range over the folded ones."""
        return [span(self._known, id) for id in self._ids(group)]

    def leads(self, one: Group, other: Group) -> bool:
        """Return True if an operation of one group leads directly to an operation of the other."""
        start, end = self._spans[id(other)]
        children = (child for id in self._ids(one) for child in self._known.onward[id])
        return any(start <= self._place.get(child, -1) < end for child in children)

    def independent(self, groups: list[Group]) -> bool:
        """Return True if no path leads from one of the groups to another."""
        home = {id: i for i, group in enumerate(groups) for id in self._ids(group)}
        last = max((self._ranks[id] for id in home), default=0)
        todo: list[int] = []
        for id, i in home.items():
            for child in self._known.onward[id]:
                if child not in home:
                    todo.append(child)
                elif home[child] != i:
                    return False
        seen = set(todo)
        while todo:  # beyond the last of them no path leads back
            for child in self._known.onward[todo.pop()]:
                if child in home:
                    return False
                if child not in seen and self._ranks[child] < last:
                    seen.add(child)
                    todo.append(child)
        return True

    def widen(self, groups: list[Group]) -> None:
        """Set the range of shapes over all groups for the operations of the first group."""
        for ids in zip(*map(self._ids, groups), strict=True):
            found = [span(self._known, id) for id in ids]
            if any(one != found[0] for one in found):
                self._known.spans[ids[0]] = _joined(found)


def span(flow: Flow, id: int) -> Span | None:
    """Return an operation's shape as (smallest, largest) of each dimension, over all folded
    ones."""
    if id in flow.spans:
        return flow.spans[id]
    sizes = flow.nodes[id].shape
    return None if sizes is None else tuple((n, n) for n in sizes)


def _joined(spans: list[Span | None]) -> Span | None:
    """Return the range over several shapes; None if they have different numbers of dimensions."""
    full = [one for one in spans if one is not None]
    if len(full) < len(spans) or len({len(one) for one in full}) > 1:
        return None
    return tuple(
        (min(low for low, _ in ends), max(high for _, high in ends))
        for ends in zip(*full, strict=True)
    )
