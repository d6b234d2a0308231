"""Small autograd graphs made by hand, as the engine would have recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphCall, GraphNode, SavedTensor
from gradscope.records.run import RunInfo

RUN = RunInfo("net.py:Net", "cpu", "float32", "train", 0, 1, "cross_entropy")


@dataclass
class Draft:
    """Collects nodes and calls; operations are added from the leaves up, as a forward does."""

    nodes: list[GraphNode] = field(default_factory=list)
    calls: list[GraphCall] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)

    def enter(self, name: str, type: str, call: int = 0) -> None:
        self.calls.append(GraphCall(name, call, type, self.inside[-1] if self.inside else -1))
        self.inside.append(len(self.calls) - 1)

    def leave(self) -> None:
        self.inside.pop()

    def leaf(self, name: str | None, shape: Sequence[int], kind: str = "parameter") -> int:
        return self._add(
            GraphNode(
                len(self.nodes), "AccumulateGrad", kind, name, shape=tuple(shape), grad_norm=0.25
            )
        )

    def op(
        self,
        op: str,
        *to: int | None,
        shape: Sequence[int] = (2, 4),
        saved: int = 0,
        storage: int | None = None,
        norm: float | None = 0.5,
        location: str | None = None,
    ) -> int:
        id = len(self.nodes)
        call = self.calls[self.inside[-1]] if self.inside else None
        kept = SavedTensor(
            "self", tuple(shape), "float32", saved, id if storage is None else storage
        )
        return self._add(
            GraphNode(
                id,
                f"{op}Backward0",
                "function",
                None,
                call.name if call else None,
                call.call if call else None,
                tuple(shape),
                tuple(None if child is None else (child, 0) for child in to),
                saved,
                norm,
                0,
                (kept,) if saved else (),
                (),
                location,
            )
        )

    def _add(self, node: GraphNode) -> int:
        self.nodes.append(node)
        return node.id

    def graph(self, **more: object) -> AutogradGraph:
        """Children have smaller ids than what leads to them: backwards is topological."""
        names = tuple(n.name for n in self.nodes if n.kind == "parameter" and n.name)
        values = {"loss": 2.3, "names": names, "saved_bytes": _saved(self.nodes), **more}
        nodes = tuple(reversed(self.nodes))
        return AutogradGraph(RUN, nodes[0].id, nodes, calls=tuple(self.calls), **values)  # type: ignore[arg-type]


def _saved(nodes: Sequence[GraphNode]) -> int:
    return sum({t.storage: t.bytes for node in nodes for t in node.saved}.values())


def _linear(draft: Draft, name: str, x: int | None, n: int = 4, norm: float | None = 0.5) -> int:
    draft.enter(name, "Linear")
    weight = draft.leaf(f"{name}.weight", (n, n))
    bias = draft.leaf(f"{name}.bias", (n,))
    turned = draft.op("T", weight, shape=(n, n), norm=norm)
    found = draft.op("Addmm", bias, x, turned, shape=(2, n), saved=32, norm=norm)
    draft.leave()
    return found


def _simple(draft: Draft, name: str, type: str, op: str, *to: int | None, **more: object) -> int:
    draft.enter(name, type)
    found = draft.op(op, *to, **more)  # type: ignore[arg-type]
    draft.leave()
    return found


def _cross_entropy(draft: Draft, x: int) -> int:
    return draft.op("NllLoss", draft.op("LogSoftmax", x, saved=32), shape=(), norm=1.0)


def wxy() -> AutogradGraph:
    """y = 3x, w = x + y: two ways to x, outside every module."""
    draft = Draft()
    x = draft.leaf("x", (2, 2), "input")
    y = draft.op("Mul", x, shape=(2, 2), norm=1.0)
    draft.op("Add", x, y, shape=(2, 2), norm=1.0)
    return replace(draft.graph(), start="w", loss=None)


def mlp() -> AutogradGraph:
    """fc1, relu, fc2 and a cross entropy outside the model."""
    draft = Draft()
    draft.enter("", "Net")
    x = _linear(draft, "fc1", None, norm=0.125)
    x = _simple(draft, "relu", "ReLU", "Relu", x, saved=32, norm=0.25)
    x = _linear(draft, "fc2", x)
    draft.leave()
    _cross_entropy(draft, x)
    return draft.graph()


def _block(draft: Draft, name: str, x: int, norm: float) -> int:
    draft.enter(name, "BasicBlock")
    draft.enter(f"{name}.conv", "Conv2d")
    weight = draft.leaf(f"{name}.conv.weight", (8, 8, 3, 3))
    y = draft.op("Convolution", x, weight, shape=(2, 8, 4, 4), saved=1024, norm=norm)
    draft.leave()
    y = _simple(draft, f"{name}.relu", "ReLU", "Relu", y, saved=1024, storage=-x - 1, norm=norm)
    y = draft.op("Add", y, x, shape=(2, 8, 4, 4), norm=norm)
    draft.leave()
    return y


def resnet() -> AutogradGraph:
    """A stem, two equal blocks with a skip in layer1, a head, a loss."""
    draft = Draft()
    draft.enter("", "ResNet")
    draft.enter("stem", "Conv2d")
    weight = draft.leaf("stem.weight", (8, 3, 3, 3))
    x = draft.op("Convolution", None, weight, shape=(2, 8, 4, 4), saved=512, norm=0.01)
    draft.leave()
    draft.enter("layer1", "Sequential")
    for i in range(2):
        x = _block(draft, f"layer1.{i}", x, 0.05 * (i + 1))
    draft.leave()
    x = draft.op("View", draft.op("Mean", x), norm=0.3)
    x = _linear(draft, "fc", x)
    draft.leave()
    _cross_entropy(draft, x)
    return draft.graph()


def cells(n: int = 5) -> AutogradGraph:
    """One cell called n times, as in a recurrent network; its weight is one leaf."""
    draft = Draft()
    draft.enter("", "Rnn")
    weight = draft.leaf("cell.weight", (4, 4))
    x = draft.leaf("x", (2, 4), "input")
    for i in range(n):
        draft.enter("cell", "Cell", i)
        x = draft.op("Tanh", draft.op("Mm", x, weight, saved=32), saved=32, norm=0.5**i)
        draft.leave()
    draft.leave()
    draft.op("Sum", x, shape=(), norm=1.0)
    return draft.graph(start="loss")


def transformer(n: int = 12) -> AutogradGraph:
    """n equal blocks in a ModuleList ``h``, whose forward never runs."""
    draft = Draft()
    draft.enter("", "Gpt")
    draft.enter("embed", "Embedding")
    x = draft.op("Embedding", draft.leaf("embed.weight", (100, 4)), shape=(2, 4), norm=0.1)
    draft.leave()
    for i in range(n):
        name = f"h.{i}"
        draft.enter(name, "Block")
        y = _simple(draft, f"{name}.norm", "LayerNorm", "NativeLayerNorm", x, saved=64, norm=0.02)
        y = _linear(draft, f"{name}.attn", y)
        x = draft.op("Add", x, y, norm=0.01 * (i + 1))
        y = _linear(draft, f"{name}.mlp", x)
        x = draft.op("Add", x, y, norm=0.01 * (i + 1))
        draft.leave()
    x = _linear(draft, "head", x, 100)
    draft.leave()
    _cross_entropy(draft, x)
    return draft.graph()


def experts(routed: Sequence[int] = (7, 7, 9, 5)) -> AutogradGraph:
    """Equal experts side by side, each for as many rows; their sum is a chain beside them."""
    draft = Draft()
    draft.enter("", "MoE")
    x = draft.op("Tanh", draft.leaf("x", (16, 4), "input"), shape=(16, 4))
    total = x
    for i, n in enumerate(routed):
        draft.enter(f"experts.{i}", "Expert")
        y = draft.op("Mm", x, draft.leaf(f"experts.{i}.weight", (4, 4)), shape=(n, 4), norm=0.1)
        y = draft.op("Relu", y, shape=(n, 4), norm=0.1)
        draft.leave()
        total = draft.op("IndexAdd", total, y, shape=(16, 4))
    draft.leave()
    draft.op("Sum", total, shape=(), norm=1.0)
    return draft.graph()


def recurrent() -> AutogradGraph:
    """A weight that gets a zero from its first step, whose state is zero, and more from another."""
    draft = Draft()
    draft.enter("", "Rnn")
    weight = draft.leaf("cell.weight", (4, 4))
    bias = draft.leaf("cell.bias", (4,))
    draft.enter("cell", "Cell", 0)
    turned = draft.op("T", weight, shape=(4, 4), norm=0.0)
    x = draft.op("Addmm", bias, None, turned)
    draft.leave()
    draft.enter("cell", "Cell", 1)
    x = draft.op("Addmm", bias, x, draft.op("T", weight, shape=(4, 4)))
    draft.leave()
    draft.leave()
    draft.op("Sum", x, shape=(), norm=1.0)
    return draft.graph()


def zeros() -> AutogradGraph:
    """The ReLU of the network above is dead: behind it every gradient is zero."""
    graph = mlp()
    return replace(graph, nodes=_behind(graph, "relu", grad_norm=0.0))


def nans() -> AutogradGraph:
    """Behind the ReLU gradients hold NaN, and no finite element."""
    graph = mlp()
    return replace(graph, nodes=_behind(graph, "relu", grad_norm=0.0, grad_nonfinite=8))


def _behind(graph: AutogradGraph, module: str, **change: object) -> tuple[GraphNode, ...]:
    """The nodes with those changed that lie behind a module's operation."""
    known = {node.id: node for node in graph.nodes}
    waiting = [e[0] for n in graph.nodes if n.module == module for e in n.to if e]
    met: set[int] = set()
    while waiting:
        id = waiting.pop()
        if id not in met:
            met.add(id)
            waiting += [edge[0] for edge in known[id].to if edge]
    return tuple(
        replace(n, **change) if n.id in met else n  # type: ignore[arg-type]
        for n in graph.nodes
    )


def cut() -> AutogradGraph:
    """A stem that somebody detached, and a frozen parameter."""
    graph = mlp()
    stem = ("stem.weight", "stem.bias")
    answer = Answer(
        "stem.weight",
        "parameter",
        "missing",
        "the output of stem is detached before fc1",
        "detached",
        "stem",
        0,
        "net.py:19",
        stem,
        "take the .detach() away, or freeze stem to say that it is meant",
    )
    return replace(
        graph,
        names=(*stem, "scale", *graph.names),
        frozen=("scale",),
        answers=(answer,),
    )


def checkpoint() -> AutogradGraph:
    """A reentrant checkpoint: one node, and the graph that it built in backward."""
    draft = Draft()
    draft.enter("", "Net")
    stem = _linear(draft, "stem", None)
    draft.enter("body", "Linear")
    through = draft.leaf(None, (2, 4), "input")
    draft.nodes[through] = replace(draft.nodes[through], to=((stem, 0),))
    weight = draft.leaf("body.weight", (4, 4))
    inner = draft.op("Mm", through, weight, saved=32)
    outer = draft.op("CheckpointFunction", stem)
    draft.nodes[outer] = replace(draft.nodes[outer], inner=((inner, 0),))
    draft.leave()
    draft.leave()
    _cross_entropy(draft, outer)
    return draft.graph()


def chain(n: int) -> AutogradGraph:
    """n operations, each leading to the next, and a leaf."""
    draft = Draft()
    x = draft.leaf("x", (4,), "input")
    nodes = [
        GraphNode(i + 1, "MulBackward0", "function", to=((i, 0),), saved_bytes=0, grad_norm=1.0)
        for i in range(x, n)
    ]
    draft.nodes += nodes
    return draft.graph()


ALL = {
    "wxy": wxy,
    "mlp": mlp,
    "resnet": resnet,
    "cells": cells,
    "transformer": transformer,
    "zeros": zeros,
    "nans": nans,
    "cut": cut,
    "checkpoint": checkpoint,
}
