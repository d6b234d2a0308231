"""Detects losses that compare each prediction with all targets: [N, 1] with [N]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.training.loop.loss_walk import ARITHMETIC, DIFFERENCES, Shape, kind, saved, shape_of

_EXPAND = "ExpandBackward"
#: What makes an axis of size one on purpose.
_ON_PURPOSE = frozenset(
    {
        *("UnsqueezeBackward", "SumBackward", "MeanBackward", "LogsumexpBackward"),
        *("MaxBackward", "MinBackward", "AmaxBackward", "AminBackward", "NormBackward"),
        "LinalgVectorNormBackward",
    }
)
_WORDS = {
    "MseLossBackward": "mse_loss",
    "SmoothL1LossBackward": "smooth_l1_loss",
    "HuberLossBackward": "huber_loss",
    "SubBackward": "-",
    "AddBackward": "+",
    "MulBackward": "*",
    "DivBackward": "/",
}


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The operands and the result: the column [N, 1, …], the row [N, …], the result [N, N, …]."""

    operation: str
    column: Shape
    row: Shape
    result: Shape


def broadcast(node: Node) -> Broadcast | None:
    """Return the unintended broadcast of an operation; None without one.

    A script that wants all pairs gives both sides equally many axes; here one side has an axis
    less.
    """
    name = kind(node)
    if name in DIFFERENCES:
        given = saved(node)
        sides = given.get("self"), given.get("target")
        found = _of_tensors(*sides) if None not in sides else None  # type: ignore[arg-type]
    elif name in ARITHMETIC:
        found = _of_nodes(node)
    else:
        return None
    return None if found is None else Broadcast(_WORDS[name], *found)


def _of_tensors(first: torch.Tensor, second: torch.Tensor) -> tuple[Shape, Shape, Shape] | None:
    """Return the shapes broadcast in a loss function, which expands both sides first."""
    shape = tuple(first.shape)
    if not _square(shape) or second.shape != first.shape:
        return None
    # An axis that was expanded has the stride 0.
    expanded = [(side.stride(0) == 0, side.stride(1) == 0) for side in (first, second)]
    if sorted(expanded) != [(False, True), (True, False)]:
        return None
    return (shape[0], 1, *shape[2:]), shape[1:], shape


def _of_nodes(node: Node) -> tuple[Shape, Shape, Shape] | None:
    """Return the shapes broadcast in arithmetic, from the graph's sides that need a gradient."""
    result = shape_of(node)
    if result is None or not _square(result):
        return None
    column, row = (result[0], 1, *result[2:]), result[1:]
    known: list[Shape] = []
    for maker, output in node.next_functions:
        while maker is not None and kind(maker) == _EXPAND:
            maker, output = maker.next_functions[0]
        if maker is None:
            continue
        shape = None if isinstance(maker, LEAF) else shape_of(maker, output)
        if shape not in (column, row) or kind(maker) in _ON_PURPOSE:
            return None
        known.append(shape)
    if not known or len(set(known)) != len(known):
        return None
    return column, row, result


def _square(shape: Shape) -> bool:
    return len(shape) > 1 and shape[0] == shape[1] > 1
