"""Checks the operands of a loss: their shapes, and which are probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.training.loop.loss_walk import ARITHMETIC, DIFFERENCES, Shape, kind, saved, shape_of

_EXPAND = "ExpandBackward"
#: Operations that make an axis of size one on purpose.
_ON_PURPOSE = frozenset(
    {
        *("UnsqueezeBackward", "SumBackward", "MeanBackward", "LogsumexpBackward"),
        *("MaxBackward", "MinBackward", "AmaxBackward", "AminBackward", "NormBackward"),
        "LinalgVectorNormBackward",
    }
)
_WITH_NUMBERS = frozenset({"RsubBackward", "NegBackward"})
_VIEWS = frozenset({"ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward"})
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


def broadcast(node: Node, *, pieces: bool = False) -> Broadcast | None:
    """Return the unintended broadcast of an operation; None without one.

    With ``pieces``, only one side may have a gradient, and no view may have made its column: losses
    of all pairs consist of such pieces, too.

    A script that wants all pairs gives both sides equally many axes; here one side has an axis
    less.
    """
    name = kind(node)
    if name in DIFFERENCES:
        given = saved(node)
        sides = given.get("self"), given.get("target")
        found = _of_tensors(*sides) if None not in sides else None  # type: ignore[arg-type]
    elif name in ARITHMETIC:
        found = _of_nodes(node, pieces=pieces)
    else:
        return None
    return None if found is None else Broadcast(_WORDS[name], *found)


def _of_tensors(first: torch.Tensor, second: torch.Tensor) -> tuple[Shape, Shape, Shape] | None:
    """Return the two shapes before a loss function broadcast them, and the shape after."""
    shape = tuple(first.shape)
    if not _square(shape) or second.shape != first.shape:
        return None
    # An axis that was expanded has the stride 0.
    expanded = [(side.stride(0) == 0, side.stride(1) == 0) for side in (first, second)]
    if sorted(expanded) != [(False, True), (True, False)]:
        return None
    return (shape[0], 1, *shape[2:]), shape[1:], shape


def _of_nodes(node: Node, *, pieces: bool) -> tuple[Shape, Shape, Shape] | None:
    """Return the shapes broadcast in arithmetic, from the graph's sides that need a gradient."""
    result = shape_of(node)
    if result is None or not _square(result):
        return None
    column, row = (result[0], 1, *result[2:]), result[1:]
    known: list[Shape] = []
    turned = False
    for maker, output in node.next_functions:
        while maker is not None and kind(maker) == _EXPAND:
            maker, output = maker.next_functions[0]
        if maker is None:
            continue
        shape = None if isinstance(maker, LEAF) else shape_of(maker, output)
        if shape not in (column, row) or kind(maker) in _ON_PURPOSE:
            return None
        known.append(shape)
        turned = turned or (shape == column and _is_turned(maker))
    if not known or len(set(known)) != len(known):
        return None
    if turned and (pieces or len(known) == 2):
        return None  # the scores of positives beside those of negatives: all pairs are meant
    if pieces and len(known) == 2:
        return None
    return column, row, result


def _is_turned(maker: Node) -> bool:
    """Return True if a view made a column of a row, perhaps before arithmetic with numbers."""
    while kind(maker) in ARITHMETIC | _WITH_NUMBERS:
        sides = [one for one, _ in maker.next_functions if one is not None]
        if len(sides) != 1 or shape_of(sides[0]) != shape_of(maker):
            return False
        maker = sides[0]
    before = maker.next_functions[0][0] if kind(maker) in _VIEWS else None
    shape = None if before is None else shape_of(before)
    return shape is not None and len(shape) == 1


def _square(shape: Shape) -> bool:
    return len(shape) > 1 and shape[0] == shape[1] > 1


#: How far a sum of probabilities may be from 1.
_NEAR = 1e-2


def divergence_fault(
    given: torch.Tensor, target: torch.Tensor, *, log_target: bool
) -> tuple[str, tuple[float, ...]] | None:
    """Return the wrong argument, with its smallest and largest value; None without one."""
    if given.shape != target.shape or not given.dim() or given.numel() < 2:
        return None
    given, target = given.detach(), target.detach()
    if _are_probabilities(given):
        return "kl-input", _range(given)
    if log_target and _are_probabilities(target):
        return "kl-log-target", _range(target)
    if not log_target and bool((target <= 0).all()) and _are_probabilities(target.exp()):
        return "kl-target", _range(target)
    return None


def _are_probabilities(values: torch.Tensor) -> bool:
    """Return True if the values are at least 0, differ, and add up to 1 over an axis."""
    if not bool((values >= 0).all()) or not bool((values != values.flatten()[0]).any()):
        return False
    axes = (-1, 1) if values.dim() > 1 else (-1,)
    return any(
        values.shape[axis] > 1 and bool(((values.double().sum(axis) - 1).abs() < _NEAR).all())
        for axis in axes
    )


def _range(values: torch.Tensor) -> tuple[float, ...]:
    return float(values.min()), float(values.max())
