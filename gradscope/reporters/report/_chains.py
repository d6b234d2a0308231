"""Writes a grad_fn chain as lines, in one iterative walk; a straight run stays at one depth.

A node is below its consumers. If it has several, the earlier ones refer to its number, so a skip
connection is one short branch, not a second copy of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from gradscope.records.graph import Chain, GraphNode
from gradscope.reporters.document import Drawn
from gradscope.reporters.header import label
from gradscope.typeset.console import dimmed
from gradscope.typeset.numbers import plural, shape
from gradscope.typeset.tables import GAP
from gradscope.typeset.text import join, plain

#: Operations between a leaf and its user that are written beside the leaf, as in ``weight → T``.
_INLINE = 3
AGAIN, BELOW = "↑", "↓"


@dataclass(frozen=True, slots=True)
class ChainLine:
    """One node: the tree's strokes, the operation, the module that made it, leaves that feed it."""

    strokes: str
    operation: str
    module: str = ""
    leaves: tuple[str, ...] = ()


@dataclass(slots=True)
class _Walk:
    nodes: dict[int, GraphNode]
    children: dict[int, list[int]]
    consumers: Counter[int]
    height: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)


def title(chain: Chain) -> str:
    """Names the start of the chain and its length."""
    kinds = Counter("operations" if node.kind == "function" else "leaves" for node in chain.nodes)
    start = label(chain.name, chain.call) + (f" → {plain(chain.path)}" if chain.path else "")
    sizes = (
        f"{plural(kinds['operations'], 'operation')}, {plural(kinds['leaves'], 'leaf', 'leaves')}"
    )
    return f"chain of {start}: {sizes}"


def lines(chain: Chain) -> list[ChainLine]:
    """Yield the lines of the chain, from its root to its leaves."""
    if not chain.nodes:
        return [ChainLine("", "no grad_fn: this output needs no gradient")]
    walk = _prepare(chain)
    found: list[ChainLine] = []
    for start in walk.nodes:
        # Beyond the root only a damaged file has nodes left over: those in a circle.
        if start not in walk.done:
            walk.consumers[start] = 1
            found += _descend(walk, start)
    return found


def unbroken(lines: Sequence[ChainLine]) -> Iterator[str]:
    """Yield the lines as text of any width."""
    for line in lines:
        parts = (line.strokes + line.operation, line.module, " · ".join(line.leaves))
        yield "  ".join(part for part in parts if part)


def legend(lines: Sequence[ChainLine]) -> list[str]:
    """Explains the arrows that occur."""
    signs = {text.split(" ")[0] for text in (line.operation for line in lines)}
    again = any(leaf.endswith(AGAIN) or f"{AGAIN} →" in leaf for x in lines for leaf in x.leaves)
    below = [f"{BELOW} #n: leads on to the node #n below"] if BELOW in signs else []
    return below + ([f"{AGAIN}: already shown above"] if again or AGAIN in signs else [])


def _prepare(chain: Chain) -> _Walk:
    """Return children, consumers and height of each node upstream of the root."""
    known = {node.id: node for node in chain.nodes}
    children: dict[int, list[int]] = {}
    consumers: Counter[int] = Counter()
    stack = [chain.nodes[0].id]
    while stack:
        id = stack.pop()
        if id in children:
            continue
        children[id] = list(
            dict.fromkeys(edge[0] for edge in known[id].to if edge and edge[0] in known)
        )
        consumers.update(children[id])
        stack += children[id]
    nodes = {id: node for id, node in known.items() if id in children}
    modules = {(node.module, node.call) for node in nodes.values()}
    several = Counter(module for module, _ in modules if module is not None)
    walk = _Walk(nodes, children, consumers)
    walk.repeated = {module for module, calls in several.items() if calls > 1}
    for id in reversed(_sorted(walk, chain.nodes[0].id)):
        walk.height[id] = 1 + max((walk.height.get(child, 0) for child in children[id]), default=0)
    return walk


def _sorted(walk: _Walk, root: int) -> list[int]:
    """Return the nodes with every consumer before its inputs."""
    waiting = Counter(walk.consumers)
    ready, found = [root], []
    while ready:
        id = ready.pop()
        found.append(id)
        for child in walk.children[id]:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    return found


def _descend(walk: _Walk, start: int) -> Iterator[ChainLine]:
    stack = [(start, "", "")]
    while stack:
        id, strokes, below = stack.pop()
        if id in walk.done:
            yield ChainLine(strokes, f"{AGAIN} {_mention(walk, id)}")
            continue
        walk.consumers[id] -= 1
        if walk.consumers[id] > 0:
            yield ChainLine(strokes, f"{BELOW} {_mention(walk, id)}")
            continue
        walk.done.add(id)
        leaves, rest = _split(walk, id)
        node, number = walk.nodes[id], walk.numbers.get(id)
        operation = plain(node.op) if node.kind == "function" else _leaf(node)
        module = "" if node.module is None else label(node.module, _call(walk, node))
        yield ChainLine(strokes, f"#{number} {operation}" if number else operation, module, leaves)
        if rest:
            trunk = max(rest, key=lambda child: walk.height.get(child, 0))
            branches = [child for child in rest if child != trunk]
            stack.append((trunk, below, below))
            stack += [(child, below + "├ ", below + "│ ") for child in reversed(branches)]


def _call(walk: _Walk, node: GraphNode) -> int | None:
    return node.call if node.module in walk.repeated else 0


def _mention(walk: _Walk, id: int) -> str:
    if id not in walk.numbers and id not in walk.done:
        walk.numbers[id] = len(walk.numbers) + 1
    number = f"#{walk.numbers[id]} " if id in walk.numbers else ""
    node = walk.nodes[id]
    return number + (plain(node.op) if node.kind == "function" else _leaf(node))


def _split(walk: _Walk, id: int) -> tuple[tuple[str, ...], list[int]]:
    """Split a node's children into leaves, written beside it, and operations, with their own
    lines."""
    leaves, rest = [], []
    for child in walk.children[id]:
        path, end = _run(walk, child, walk.nodes[id].module)
        if end is None:
            rest.append(child)
            continue
        name = (
            _leaf(walk.nodes[end]) if end not in walk.done else f"{_leaf(walk.nodes[end])} {AGAIN}"
        )
        walk.done.update([*path, end])
        leaves.append(" → ".join([name, *(plain(walk.nodes[p].op) for p in reversed(path))]))
    return tuple(leaves), rest


def _run(walk: _Walk, id: int, module: str | None) -> tuple[list[int], int | None]:
    """Return the few operations from here to a leaf, if the same module made them and none
    branches."""
    path: list[int] = []
    while walk.nodes[id].kind == "function":
        straight = len(walk.children[id]) == 1 and walk.consumers[id] == 1 and id not in walk.done
        elsewhere = walk.nodes[id].module not in (module, None)
        if not straight or elsewhere or len(path) == _INLINE:
            return path, None
        path.append(id)
        id = walk.children[id][0]
    return path, id


def _leaf(node: GraphNode) -> str:
    sizes = "" if node.shape is None else f" {shape(node.shape)}"
    if node.name is None:
        return plain(node.op) + sizes
    return f"{'input ' if node.kind == 'input' else ''}{plain(node.name)}{sizes}"


def drawn(chain: Chain, width: int | None) -> Drawn:
    """Draw operations, modules and leaves beside each other, as far as the width allows."""
    found = lines(chain)
    texts = [Text(title(chain), "bold"), *_rows(found, width)]
    return Drawn(texts, title(chain), list(unbroken(found)), legend(found))


def _rows(lines: Sequence[ChainLine], width: int | None) -> Iterator[Text]:
    second = max(cell_len(line.strokes + line.operation) for line in lines) + GAP
    third = second + max(cell_len(line.module) for line in lines) + GAP
    widest = max((cell_len(leaf) for line in lines for leaf in line.leaves), default=0)
    room = None if width is None else width - third
    for line in lines:
        node = Text.assemble((line.strokes, "dim"), line.operation)
        node.append(" " * (second - node.cell_len) + line.module)
        below = line.strokes.replace("├", "│")
        if room is None or room >= widest:
            first, *further = join(line.leaves, room) or [""]
            yield node.append(" " * (third - node.cell_len) + first)
            for leaves in further:
                yield Text.assemble((below, "dim"), " " * (third - cell_len(below)), leaves)
        else:
            yield node
            yield from (Text.assemble((below, "dim"), f"    {leaf}") for leaf in line.leaves)
    for remark in legend(lines):
        yield from dimmed(remark, width)
