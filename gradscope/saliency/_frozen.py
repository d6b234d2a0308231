"""A model that saliency runs: parameters take no gradient meanwhile, and all is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def frozen(model: nn.Module, seed: int) -> Iterator[None]:
    """No parameter requires a gradient, dropout is seeded; on leaving the model is as before.

    The mode stays the caller's. A model left in training mode gets its buffers (running means)
    back too.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    kept = []
    if any(module.training for module in model.modules()):
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    cuda = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(cuda)):
        torch.manual_seed(seed)
        for parameter in trainable:
            parameter.requires_grad = False  # its method may be hidden by a misspelt flag
        try:
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad = True
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
