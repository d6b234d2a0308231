"""Finds trained tensors in plain attributes of modules, which are not parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import nn

from gradscope.capture.graph import LEAF
from gradscope.explain.shared.frames import source_file
from gradscope.records.loop import PlainTensor
from gradscope.training.loop.script_lines import written

#: Number of operations allowed between a tensor and its leaf.
_MOST = 16


def plain_tensors(
    model: nn.Module, held: Collection[int]
) -> Iterator[tuple[PlainTensor, torch.Tensor]]:
    """Yield plain tensors with leaves that get a gradient and are neither registered nor in an
    optimizer.

    An example is ``nn.Parameter(…).unsqueeze(0)``: the attribute holds the result, not the
    parameter.

    Args:
        held: the ids of the parameters of all optimizers.

    Yields:
        Each with its first leaf.
    """
    known = {id(parameter) for parameter in model.parameters()} | set(held)
    for name, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                leaves = list(_leaves(value))
                if leaves and all(id(p) not in known and p.grad is not None for p in leaves):
                    line = attribute_line(module, attribute)
                    found = PlainTensor(name, attribute, tuple(value.shape), value.is_leaf, line)
                    yield found, leaves[0]


def _leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the leaves that a tensor was computed from; none if the graph is large."""
    if tensor.grad_fn is None:
        yield tensor
        return
    nodes, leaves = [tensor.grad_fn], list[torch.Tensor]()
    for node in nodes:  # it grows
        if isinstance(node, LEAF):
            leaves.append(node.variable)
        nodes += [one for one, _ in node.next_functions if one is not None]
        if len(nodes) > _MOST:
            return
    yield from leaves


def attribute_line(module: nn.Module, attribute: str) -> str | None:
    """Return the line of the class that sets the attribute."""
    file = source_file(type(module))
    return None if file is None else written(rf"\bself\.{attribute}\s*(:[^=]*)?=[^=]", file)
