"""The Python stack of each node of the autograd graph, which PyTorch keeps on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def stacks_recorded() -> Iterator[None]:
    """Every node that is made in the block remembers the Python stack that made it."""
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    # Not by its class, which warns.
    torch.set_anomaly_enabled(True, before[0] and before[1])
    try:
        yield
    finally:
        torch.set_anomaly_enabled(*before)
