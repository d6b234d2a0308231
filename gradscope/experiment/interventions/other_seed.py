"""Changes every seed: those that the script sets, and PyTorch's default seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

#: Number added to each seed.
SHIFT = 1000


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Change the seed of ``torch.manual_seed``; ``arm_process`` does so for Python and NumPy."""
    import torch  # not above: seeds of Python's are shifted before the script imports torch

    from gradscope.capture.hooks import replace

    for owner in (torch, torch.random):
        replace(patches, owner, "manual_seed", shifted)
    generator = torch.default_generator
    generator.manual_seed(generator.initial_seed() + SHIFT)


def shifted(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a seeding function that uses another seed; None and non-integers stay."""

    @functools.wraps(original)
    def seed(*args: Any, **kwargs: Any) -> Any:
        first = tuple(map(_other, args[:1]))
        return original(*first, *args[1:], **{name: _other(one) for name, one in kwargs.items()})

    return seed


def _other(seed: Any) -> Any:
    return seed + SHIFT if isinstance(seed, int) else seed
