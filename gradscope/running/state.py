"""What a run must leave as it was: modes, gradients, buffers, weights, flags, random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def kept_as_found(model: nn.Module, *, weights: bool) -> Iterator[None]:
    """Give the model back exactly as it was, whatever happens inside the block.

    ``.grad`` is swapped out and put back, buffers are copied, and so are the weights where
    ``weights`` says that an optimizer will move them.
    """
    modules = list(model.modules())
    training = [module.training for module in modules]
    slots = [(module, dict(module._parameters), dict(module._buffers)) for module in modules]
    parameters = {p for module in modules for p in module._parameters.values() if p is not None}
    kept = [(p, p.requires_grad, p.grad, _copy(p) if weights else None) for p in parameters]
    buffers = [
        (b, _copy(b)) for b in {b for m in modules for b in m._buffers.values() if b is not None}
    ]
    for parameter in parameters:
        parameter.grad = None
    with random_state_kept(_devices(parameters)):
        try:
            yield
        finally:
            for module, mode, (_, own_parameters, own_buffers) in zip(
                modules, training, slots, strict=True
            ):
                module.training = mode
                _put_back(module._parameters, own_parameters)
                _put_back(module._buffers, own_buffers)
            for parameter, requires_grad, gradient, value in kept:
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient
                _restore(parameter, value)
            for buffer, value in buffers:
                _restore(buffer, value)


@contextmanager
def random_state_kept(devices: set[torch.device]) -> Iterator[None]:
    """Python's, NumPy's and PyTorch's random states as they were, after the block."""
    python_state = random.getstate()
    # Not imported for this: a program that did not load NumPy has no NumPy state to keep.
    numpy_random: Any = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random else None
    cuda = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy_random:
                numpy_random.set_state(numpy_state)


def _devices(parameters: set[nn.Parameter]) -> set[torch.device]:
    return {parameter.device for parameter in parameters}


def _copy(tensor: torch.Tensor) -> torch.Tensor | None:
    if is_lazy(tensor) or tensor.device.type == "meta":
        return None
    return tensor.detach().clone()


@torch.no_grad()
def _restore(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    if value is not None:
        tensor.copy_(value)


def _put_back(slots: dict[str, Any], found: dict[str, Any]) -> None:
    """The same objects under the same names, in the same order."""
    if list(slots) != list(found) or any(slots[name] is not found[name] for name in found):
        slots.clear()
        slots.update(found)
