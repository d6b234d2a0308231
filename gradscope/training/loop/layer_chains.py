"""Finds unused activations between layers with only linear operations between them: together such
layers are one linear layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.names import modules_by_name
from gradscope.capture.nodes import MOVES
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.loss_walk import LAYERS, kind, weight_of

#: A larger graph is not walked to its end.
_MOST = 4096
#: The edge by which a layer's input comes.
_INPUT = {"AddmmBackward": 1, "MmBackward": 0, "ConvolutionBackward": 0}
#: Linear in their input, whose edge is the first; a product with a mask may be an activation.
_LINEAR = MOVES | {
    "NativeBatchNormBackward",
    "CudnnBatchNormBackward",
    "NativeDropoutBackward",
    "AvgPool2DBackward",
}


#: Activations between layers; not those of an output alone, as a softmax for predictions.
ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU),
    *(nn.SiLU, nn.Mish, nn.Hardswish, nn.Softplus, nn.Tanh),
)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Pair(NamedTuple):
    """The weights of two such layers, in the order of forward."""

    first: torch.Tensor
    second: torch.Tensor


def layer_pairs(roots: Sequence[object]) -> Iterator[Pair]:
    """Yield pairs of layers upstream of these tensors with only linear operations between them."""
    stack = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn]
    seen = set(stack)
    while stack and len(seen) < _MOST:
        node = stack.pop()
        if kind(node) in LAYERS:
            before = _layer_before(node)
            second, first = weight_of(node), None if before is None else weight_of(before)
            if first is not None and second is not None:
                yield Pair(first, second)
        for one, _ in node.next_functions:
            if one is not None and one not in seen and not isinstance(one, LEAF):
                seen.add(one)
                stack.append(one)


def _layer_before(layer: Node) -> Node | None:
    node = layer.next_functions[_INPUT[kind(layer)]][0]
    while node is not None and kind(node) not in LAYERS:
        edges = [one for one, _ in node.next_functions]
        adds_bias = kind(node) == "AddBackward" and isinstance(edges[1], LEAF)
        if kind(node) not in _LINEAR and not adds_bias:
            return None
        node = edges[0]
    return node


def unused_activations(
    model: nn.Module, pairs: Collection[tuple[int, int]], idle: Collection[nn.Module]
) -> Iterator[LoopFact]:
    """Yield the unused activations of a model, if most of the layers around them follow each other
    directly.

    Args:
        pairs: the ids of the weights of such layers.
        idle: modules that were never called.
    """
    if not pairs or not idle:
        return
    named = modules_by_name(model)
    for owner, module in named.items():
        unused = [k for k, one in module.named_children() if one in idle]
        if not unused:
            continue
        layers = dict(_layers_beside(module))
        names = {id(one.weight): name for name, one in layers.items()}
        mine = [(names[a], names[b]) for a, b in pairs if a in names and b in names]
        if not mine or 2 * len(mine) <= len(layers) - 1:
            continue  # one pair among others is a bottleneck
        before, after = min(mine, key=lambda pair: list(layers).index(pair[0]))
        around = f"{owner}." if owner else ""
        words = tuple(f"{around}{name}" for name in (*unused, before))
        yield LoopFact("unused-activation", f"{around}{after}", count=len(mine), words=words)


def _layers_beside(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers of a module and of its plain lists."""
    for name, child in module.named_children():
        if isinstance(child, _LAYERS):
            yield name, child  # type: ignore[misc]  # whichever it is, it has a weight
        elif type(child) in (nn.ModuleList, nn.Sequential):
            yield from ((f"{name}.{key}", one) for key, one in _layers_beside(child))
