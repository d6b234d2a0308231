"""Moves the tensors of a data function to the run's device, as new leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gradscope.loading.sources.context import Context
from gradscope.loading.sources.tensors import Modifiers, finish


def mover(context: Context, key: str) -> Callable[[Any], Any]:
    """A function that moves a value of any nesting: arrays become tensors, floating ones take the
    run's dtype, ``requires_grad`` is kept. One tensor seen twice stays one: the model may tell its
    arguments apart by nothing else."""
    moved: dict[int, tuple[Any, Tensor]] = {}

    def tensor(value: Tensor) -> Tensor:
        if id(value) not in moved:
            leaf = finish(value, Modifiers(requires_grad=value.requires_grad), context, key)
            moved[id(value)] = value, leaf  # the original too, or its id could come again
        return moved[id(value)][1]

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tensor(value)
        if isinstance(value, (np.ndarray, np.generic)):
            return tensor(torch.from_numpy(np.array(value)))
        if isinstance(value, PackedSequence):
            packed: Any = value
            integral = not packed.data.is_floating_point()
            return packed.to(context.device, packed.data.dtype if integral else context.dtype)
        if isinstance(value, Mapping):
            return {name: move(item) for name, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(move, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(move, value))
        return value.to(context.device) if callable(getattr(value, "to", None)) else value

    return move
