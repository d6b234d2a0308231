"""The one place that seeds: torch on every device, ``random``, and numpy where it is loaded."""

from __future__ import annotations

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed torch (CPU, CUDA, MPS), ``random`` and numpy's global generator.

    Libraries take seeds of 64 (torch) and 32 (numpy) bits; a larger one is cut to that.
    """
    torch.manual_seed(seed % 2**64)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
