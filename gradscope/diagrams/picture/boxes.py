"""The parts of a picture: boxes, arrows, frames and colours, and their text.

Colours are a light viridis ramp on a log scale, with other fills for missing values. Black text on
every fill has a contrast of at least 4.5. The text in a box also gives its value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gradscope.charts.scales import viridis
from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.groups import Group, start
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.typeset.numbers import count, number, plural, shape, size
from gradscope.typeset.text import plain


@dataclass(frozen=True, slots=True)
class Box:
    """An operation, a closed group, a parameter or an input.

    ``lines`` is its text, the first line bold. ``node`` is the graph's node, if it is a single one;
    ``mark`` is set where zero, missing or non-finite gradients begin.
    """

    id: str
    kind: str  # operation | group | repeats | parameter | input
    lines: tuple[str, ...]
    title: str
    fill: str
    cluster: int | None = None
    node: int | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow in the direction of gradients, with the number of gradients."""

    tail: int
    head: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """An open group: a labelled frame around its boxes and inner clusters.

    The label is at the left (``l``) or the right (``r``) of the top; ``wide`` doubles the room for
    it.
    """

    label: str
    title: str
    parent: int | None = None
    depth: int = 0
    side: str = "l"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes, arrows and clusters of a picture; they refer to each other by index.

    ``bar`` has the colours of the scale from small to large, ``ticks`` the values at its left end,
    middle and right end; ``legend`` explains the other colours. ``direction`` is the direction of
    arrows: down (TB) or to the right (LR).
    """

    title: str
    notes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    clusters: tuple[Cluster, ...]
    bar: tuple[str, ...] = ()
    ticks: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    by: str = "gradient"
    full: bool = False
    direction: str = "TB"

    @property
    def depth(self) -> int:
        """The level of the deepest boxes: 1 is the model's direct parts."""
        return max((c.depth for c in self.clusters), default=0)


def height(drawing: Drawing) -> float:
    """Return the approximate height of the drawing in points: the longest path, by the lines in
    boxes."""
    top = [0.0] * len(drawing.boxes)
    for i, heads in downwards(drawing):
        bottom = top[i] + 14 * len(drawing.boxes[i].lines) + 34
        for head in heads:
            top[head] = max(top[head], bottom)
    frames = 2 * 22 * drawing.depth
    return max(top, default=0.0) + frames + 70


def downwards(drawing: Drawing) -> Iterator[tuple[int, list[int]]]:
    """Yield the boxes in topological order, each with the boxes that it leads to."""
    waiting = Counter(arrow.head for arrow in drawing.arrows)
    after: dict[int, list[int]] = {}
    for arrow in drawing.arrows:
        after.setdefault(arrow.tail, []).append(arrow.head)
    ready = [i for i in range(len(drawing.boxes)) if not waiting[i]]
    while ready:
        i = ready.pop()
        yield i, after.get(i, [])
        for head in after.get(i, ()):
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(head)


#: The share of white in each colour: black text is readable on the darkest one too.
_WHITE = 0.5

#: Number of steps of a scale's bar.
_BAR = 36

INK = "#111111"
PLAIN = "#ffffff"
ZERO = "#ffd9b3"
MISSING = "#e4e4e4"
NONFINITE = "#ff9d9d"
LEAF = "#f4f7ff"


def contrast(one: str, other: str) -> float:
    """Return the WCAG 2 contrast ratio of two ``#rrggbb`` colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ramp(share: float) -> str:
    """Return the colour at ``share`` of the way from the smallest value to the largest."""
    return "#" + "".join(f"{round(255 * _WHITE + c * (1 - _WHITE)):02x}" for c in viridis(share))


@dataclass(frozen=True, slots=True)
class Scale:
    """A log scale over positive values; without any, no box is coloured.

    ``least`` is the smallest value, ``low`` the value of the first colour.
    """

    by: str
    low: float
    high: float
    least: float = 0.0

    def fill(self, value: float | None, nonfinite: int = 0) -> str:
        """Return the fill of a box with that value."""
        if self.by == "gradient" and nonfinite:
            return NONFINITE
        if value is None:
            return MISSING if self.by == "gradient" else PLAIN
        if value <= 0:
            return ZERO if self.by == "gradient" else PLAIN
        # Logarithms are subtracted, because the quotient of two finite numbers may overflow.
        low, high = math.log(self.low), math.log(self.high)
        return ramp((math.log(value) - low) / (high - low) if high > low else 1.0)

    def _values(self, steps: int) -> list[float]:
        """Yield values in equal steps of the logarithm, from the smallest to the largest."""
        if not self.high:
            return []
        if self.least == self.high:
            return [self.high]
        low, high = math.log(self.least), math.log(self.high)
        inner = [math.exp(low + (high - low) * i / (steps - 1)) for i in range(1, steps - 1)]
        return [self.least, *inner, self.high]

    def bar(self) -> tuple[str, ...]:
        """Return the colours from the smallest value to the largest."""
        return tuple(self.fill(value) for value in self._values(_BAR))

    def ticks(self) -> tuple[str, ...]:
        """Return the values at the bar's ends and in its middle; a single one if all are equal."""
        return tuple(map(number if self.by == "gradient" else _bytes, self._values(3)))

    def legend(self, fills: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return swatches with words: the fills used beside the scale."""
        used = set(fills)
        others = ((ZERO, "zero"), (MISSING, "no gradient"), (NONFINITE, "NaN or Inf"))
        return tuple(pair for pair in others if pair[0] in used)


def _bytes(value: float) -> str:
    return size(round(value))


def scale(by: str, values: Iterable[float | None]) -> Scale:
    """Make a scale over the positive finite ``values``, at least a decade wide."""
    positive = [v for v in values if v is not None and 0 < v < math.inf]
    if not positive:
        return Scale(by, 0.0, 0.0)
    least, high = min(positive), max(positive)
    # Less than a decade of difference is the same order of size, and should not look like a
    # difference.
    return Scale(by, min(least, high / 10) or least, high, least)


#: More leaves than this in one box are counted.
_LEAVES = 4
#: More causes than this above a picture are counted.
_CAUSES = 4
#: A line that is longer makes a picture wide.
_LONG = 110


def _sizes(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else shape(sizes)


def call(module: str | None, number: int | None) -> str:
    """Return a call's name: ``layer1.0``, and ``cell #2`` for a later call of the same module."""
    if module is None:
        return ""
    name = plain(module) or "the model"
    return f"{name} #{number}" if number else name


def gradient(norm: float | None, nonfinite: int = 0) -> str:
    """Return the gradient in words, so that nothing is shown by colour alone."""
    bad = f", {count(nonfinite)} NaN or Inf" if nonfinite else ""
    return f"gradient {number(norm)}{bad}" if norm is not None else f"no gradient{bad}"


def node_lines(
    node: GraphNode, leaves: tuple[GraphNode, ...], around: str | None, sizes: str | None = None
) -> tuple[str, ...]:
    """Return an operation's lines: its module without a frame, leaves, output and saved size,
    gradient.
    """
    lines = [plain(node.op)]
    if node.module is not None and node.module != around:
        lines.append(f"in {call(node.module, node.call)}")
    prefix = f"{node.module}." if node.module else ""
    named = [(plain(leaf.name or leaf.kind), _sizes(leaf.shape)) for leaf in leaves]
    lines += [f"{n.removeprefix(prefix)} {shape}".rstrip() for n, shape in named[:_LEAVES]]
    if len(named) > _LEAVES:
        lines.append(f"and {plural(len(named) - _LEAVES, 'more leaf', 'more leaves')}")
    sizes = _sizes(node.shape) if sizes is None else sizes
    facts = [f"output {sizes}"] if sizes else []
    if node.saved_bytes:
        facts.append(f"saves {size(node.saved_bytes)}")
    lines.append(" · ".join(facts))
    lines.append(gradient(node.grad_norm, node.grad_nonfinite or 0))
    return tuple(line for line in lines if line)


def leaf_lines(node: GraphNode) -> tuple[str, ...]:
    """Return the lines of a parameter or an input."""
    name = plain(node.name) if node.name else f"({node.kind} without a name)"
    lines = (name, f"{node.kind} {_sizes(node.shape)}".rstrip())
    return (*lines, gradient(node.grad_norm, node.grad_nonfinite or 0))


def group_lines(group: Group) -> tuple[str, ...]:
    """Return the lines of a closed group: its name, its size, the gradient that enters."""
    facts = [plural(group.ops, "op")]
    if group.parameters:
        facts.append(plural(group.parameters, "parameter"))
    lines = [cluster_label(group), " · ".join(facts)]
    if group.saved_bytes:
        lines.append(f"saves {size(group.saved_bytes)}")
    low, high = group.grad_low, group.grad_high
    if group.times > 1 and low is not None and high is not None and low != high:
        bad = f", {count(group.nonfinite)} NaN or Inf" if group.nonfinite else ""
        lines.append(f"gradient {number(low)} … {number(high)}{bad}")
    else:
        lines.append(gradient(group.grad_norm, group.nonfinite))
    lines += begins(group.mark)
    inside = (mark for mark in group.within if mark != group.mark)
    lines += [f"inside: {line}" for mark in inside for line in begins(mark)]
    return tuple(lines)


def begins(mark: str | None) -> list[str]:
    """Say in words how the gradient changes here: it becomes zero, NaN, Inf or missing."""
    words = {"zero": "zero from here on", "missing": "no gradient from here on"}
    words["nonfinite"] = "NaN or Inf from here on"
    return [words[mark]] if mark in words else []


def cluster_label(group: Group) -> str:
    """Return a frame's label: ``layer1 · Sequential``, ``0 … 11 ×12 · Block``."""
    kind = plain(group.type) if group.type and group.type != group.label else ""
    return f"{group.label}{group.repeats}" + (f" · {kind}" if kind else "")


def group_title(group: Group) -> str:
    """Return the tooltip of a group, open or closed."""
    name = plain(group.name) if group.name else group.label
    facts = [name, *group_lines(group)]
    if group.times > 1:
        how = "no path leads from one to another" if group.parallel else "each leads to the next"
        facts.append(f"{group.times} alike, drawn once; {how}")
    return "\n".join(dict.fromkeys(facts))


def node_title(node: GraphNode) -> str:
    """Return the tooltip of a node: everything that does not fit into its box."""
    facts = [plain(node.op), f"node {node.id}"]
    if node.name:
        facts.append(f"{node.kind} {plain(node.name)}")
    if node.module is not None:
        facts.append(f"made by {call(node.module, node.call)}")
    if node.shape is not None:
        facts.append(f"shape {_sizes(node.shape)}")
    for tensor in node.saved:
        facts.append(f"saves {plain(tensor.name)} {_sizes(tensor.shape)} {size(tensor.bytes)}")
    facts.append(gradient(node.grad_norm, node.grad_nonfinite or 0))
    if node.location:
        facts.append(plain(node.location))
    return "\n".join(facts)


def caption(graph: AutogradGraph) -> tuple[str, tuple[str, ...]]:
    """Return the title of a picture, and the lines below it."""
    kinds = [node.kind for node in graph.nodes]
    facts = [
        plural(kinds.count("function"), "operation"),
        plural(kinds.count("parameter"), "parameter tensor"),
    ]
    if "input" in kinds:
        facts.append(plural(kinds.count("input"), "input"))
    if graph.loss is not None and graph.start == "loss":
        facts.append(f"loss {number(graph.loss)}")
    if graph.saved_bytes:
        facts.append(f"saves {size(graph.saved_bytes)}")
    if graph.part is not None:
        facts.insert(0, f"only {plain(graph.part)}")
    title = f"{plain(graph.run.model)}: the autograd graph upstream of {start(graph)}"
    return title, (
        " · ".join(facts),
        "arrows lead the way that gradients flow back",
        *_missing(graph),
    )


def signs(drawing: Drawing, view: GraphView) -> Iterator[str]:
    """Explain each sign that occurs in the drawing."""
    titles = [c.label for c in drawing.clusters] + [
        box.lines[0] for box in drawing.boxes if box.kind == "repeats"
    ]
    if any(" ×" in title for title in titles):
        yield "×n after a name: n equal blocks, drawn as one"
    if any(arrow.count > 1 for arrow in drawing.arrows):
        yield "×n beside an arrow: n gradients flow along it"
    if view.hidden:
        yield f"{plural(view.hidden, 'view or transpose', 'views and transposes')} hidden"


def _missing(graph: AutogradGraph) -> list[str]:
    """Yield one line per cause that keeps parameters out of the graph."""
    if not graph.complete:
        return []
    answers = [a for a in graph.answers if a.kind == "parameter" and a.state == "missing"]
    lines = [_cause(answer) for answer in answers[:_CAUSES]]
    rest = sum(len(answer.upstream) or 1 for answer in answers[_CAUSES:])
    if rest:
        lines.append(f"not in the graph: {plural(rest, 'more parameter tensor')}")
    return lines


def _cause(answer: Answer) -> str:
    others = len(answer.upstream) - 1
    names = plain(answer.name) + (f" and {others} more" if others > 0 else "")
    why = ", ".join(plain(part) for part in (answer.cause, answer.location) if part)
    line = f"not in the graph: {names}" + (f" ({why})" if why else "")
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"
