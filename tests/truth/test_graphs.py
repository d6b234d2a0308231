"""The graph that gradscope records against its own walk, on many models."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

import gradscope
from gradscope.records.graph import AutogradGraph, GraphNode
from truth.cases import convnext, swin

pytestmark = pytest.mark.slow

Net = tuple[nn.Module, torch.Tensor]


class Unrolled(nn.Module):
    """One LSTM cell, five hundred times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], 8)
        for _ in range(500):
            h, c = self.cell(x, (h, c))
        return h


class Seed(nn.Module):
    """w = x + y with y = 3x, beside z = x / 2, which leads nowhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = x * 3, x / 2
        return x + y


class Tied(nn.Module):
    """One weight at both ends, an output that is used twice, several outputs of one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.embed(x).chunk(2, dim=1)
        both = torch.cat([right * left, left + left.detach()], dim=1)
        return both @ self.embed.weight + x.mean()


def picture(build: Callable[..., nn.Module], size: int = 64, **options: Any) -> Net:
    return build(weights=None, **options).eval(), torch.randn(1, 3, size, size)


MODELS: dict[str, Callable[[], Net]] = {
    "resnet18": lambda: picture(torchvision.models.resnet18),
    "densenet121": lambda: picture(torchvision.models.densenet121),
    "squeezenet": lambda: picture(torchvision.models.squeezenet1_1),
    "mobilenet": lambda: picture(torchvision.models.mobilenet_v3_small),
    "googlenet": lambda: picture(torchvision.models.googlenet, init_weights=False),
    "convnext": lambda: (convnext().eval(), torch.randn(1, 3, 64, 64)),
    "swin": lambda: (swin().eval(), torch.randn(1, 3, 64, 64)),
    "vit": lambda: (
        torchvision.models.VisionTransformer(32, 16, 2, 2, hidden_dim=16, mlp_dim=32).eval(),
        torch.randn(1, 3, 32, 32),
    ),
    "lstm": lambda: (Unrolled(), torch.randn(2, 4)),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        torch.randn(2, 5, 8),
    ),
    "tied": lambda: (Tied(), torch.randn(3, 6)),
    "seed": lambda: (Seed(), torch.tensor([1.0, 2.0], requires_grad=True)),
}


@functools.cache
def graph_of(name: str) -> AutogradGraph:
    """Return gradscope's graph of a model, once for all tests."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return gradscope.graph(model, x, loss="sum")


#: Counted once by hand; a walk that forgets leaves, or meets a node twice, counts otherwise.
NODES = {"resnet18": 133, "densenet201": 1317, "lstm": 7505, "seed": 4}

Step = tuple[int, str, tuple[tuple[int, int] | None, ...]]


def canonical(root: Any, op: Callable[[Any], str], to: Callable[[Any], Any]) -> list[Step]:
    """Nodes by their place in a depth-first walk that follows ``to`` in its order."""
    place: dict[Any, int] = {}
    order: list[Any] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node in place:
            continue
        place[node] = len(order)
        order.append(node)
        stack += [edge[0] for edge in reversed(to(node)) if edge is not None]
    return [
        (i, op(node), tuple(None if e is None else (place[e[0]], e[1]) for e in to(node)))
        for i, node in enumerate(order)
    ]


def walked(loss: torch.Tensor) -> list[Step]:
    """The graph as PyTorch has it."""

    def to(node: Any) -> list[tuple[Any, int] | None]:
        return [None if n is None else (n, i) for n, i in node.next_functions]

    return canonical(loss.grad_fn, lambda node: type(node).__name__, to)


def recorded(graph: AutogradGraph) -> list[Step]:
    nodes = {node.id: node for node in graph.nodes}
    return canonical(graph.root, lambda i: nodes[i].op, lambda i: nodes[i].to)


def edges(steps: list[Step]) -> Counter[tuple[int, int, int]]:
    return Counter((i, *edge) for i, _, to in steps for edge in to if edge)


@pytest.mark.parametrize("name", MODELS)
def test_nodes_and_edges_equal_an_independent_walk(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    loss = model(x).sum()
    expected = walked(loss)
    graph = graph_of(name)
    found = recorded(graph)
    assert found == expected
    assert edges(found) == edges(expected)
    assert len(graph.nodes) == len(expected) == NODES.get(name, len(expected))


@pytest.mark.parametrize("name", MODELS)
def test_each_node_stands_before_those_that_it_leads_to(name: str) -> None:
    graph = graph_of(name)
    assert [node.id for node in graph.nodes] == list(range(len(graph.nodes)))
    assert graph.root == 0
    assert all(edge[0] > node.id for node in graph.nodes for edge in node.to if edge)


def close(found: float | None, expected: torch.Tensor | None) -> bool:
    if expected is None or found is None:
        return expected is None and found is None
    true = expected.double().norm().item()
    return abs(found - true) <= 1e-5 * true


@pytest.mark.parametrize("name", MODELS)
def test_gradient_norms_equal_pytorchs_own(name: str) -> None:
    """Of leaves against ``.grad``, of operations against ``retain_grad`` on modules' outputs."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    met: list[tuple[torch.Tensor, Any]] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad and not output._is_view():
            output.retain_grad()
            met.append((output, output.grad_fn))

    handles = [m.register_forward_hook(keep) for m in model.modules()]
    loss = model(x).sum()
    place = {}
    stack = [loss.grad_fn]
    while stack:  # the same order as in `canonical`
        node: Any = stack.pop()
        if node not in place:
            place[node] = len(place)
            stack += [n for n, _ in reversed(node.next_functions) if n is not None]
    loss.backward()
    for handle in handles:
        handle.remove()
    # A tensor that was written to since belongs to another node by now.
    truth = {place[node]: t.grad for t, node in met if node in place and t.grad_fn is node}
    leaves = {name: p.grad for name, p in model.named_parameters()}
    if x.grad is not None:
        leaves["input"] = x.grad

    graph = graph_of(name)
    nodes = {node.id: node for node in graph.nodes}
    by_place = _placed(graph)
    assert all(close(nodes[by_place[i]].grad_norm, grad) for i, grad in truth.items())
    named = {node.name: node for node in graph.nodes if node.kind != "function"}
    assert named.keys() == {name for name, grad in leaves.items() if grad is not None}
    assert all(close(node.grad_norm, leaves[name]) for name, node in named.items() if name)


def _placed(graph: AutogradGraph) -> dict[int, int]:
    nodes = {node.id: node for node in graph.nodes}
    order: dict[int, int] = {}
    stack = [graph.root]
    while stack:
        i = stack.pop()
        if i is not None and i not in order:
            order[i] = len(order)
            stack += [edge[0] for edge in reversed(nodes[i].to) if edge]
    return {place: i for i, place in order.items()}


def without_an_edge(nodes: tuple[GraphNode, ...]) -> tuple[GraphNode, ...]:
    doubled = next(node for node in nodes if sum(edge is not None for edge in node.to) > 1)
    return tuple(replace(n, to=(None, *n.to[1:])) if n is doubled else n for n in nodes)


def with_an_edge_swapped(nodes: tuple[GraphNode, ...]) -> tuple[GraphNode, ...]:
    doubled = next(n for n in nodes if len(n.to) > 1 and n.to[0] != n.to[1])
    return tuple(replace(n, to=n.to[::-1]) if n is doubled else n for n in nodes)


def with_another_output(nodes: tuple[GraphNode, ...]) -> tuple[GraphNode, ...]:
    first = nodes[0]
    assert first.to[0] is not None
    return (replace(first, to=((first.to[0][0], 1), *first.to[1:])), *nodes[1:])


@pytest.mark.parametrize("fault", [without_an_edge, with_an_edge_swapped, with_another_output])
def test_the_comparison_rejects(fault: Callable[..., tuple[GraphNode, ...]]) -> None:
    torch.manual_seed(0)
    model, x = MODELS["encoder"]()
    graph = graph_of("encoder")
    wrong = replace(graph, nodes=fault(graph.nodes))
    assert recorded(wrong) != walked(model(x).sum())


@pytest.mark.parametrize("name", ["resnet18", "swin", "lstm", "tied", "seed"])
def test_saved_bytes_equal_what_saved_tensors_hooks_count(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)  # or its address could be given again
        # The 3 of `x * 3` is kept in a tensor too, which costs nobody anything.
        number = tensor.dim() == 0 and tensor.dtype == torch.float64
        if tensor.untyped_storage().data_ptr() not in own and not number:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).sum()
    graph = graph_of(name)
    assert graph.saved_bytes == sum(storages.values())
    by_storage = {s.storage: s.bytes for node in graph.nodes for s in node.saved}
    if all(node.saved_bytes is not None for node in graph.nodes):
        assert sum(by_storage.values()) == graph.saved_bytes
