"""Whether a model fits into this machine's memory: what cannot fit is told before it is built."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.errors import ConfigError, Place
from gradscope.typeset.numbers import size

#: What a container may use at most, where this is one.
_OF_A_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def check_fits(model: nn.Module, name: str, place: Place | None) -> None:
    """Refuse a model whose parameters and buffers take more than this machine has.

    Args:
        model: on the meta device.
        name: as the user wrote it.
        place: where.

    Raises:
        ConfigError: says how much it takes, and how much there is.
    """
    there_is = machine_memory()
    tensors = dict.fromkeys(t for t in chain(model.parameters(), model.buffers()) if not is_lazy(t))
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if there_is is None or needed <= there_is:
        return
    count = sum(tensor.numel() for tensor in tensors if tensor.requires_grad)
    raise ConfigError(
        f"`{name}` does not fit into this machine's memory: its {count:,} parameters take "
        f"{size(needed)}, and there are {size(there_is)}",
        place=place,
        help="`--device meta` shows shapes, grad_fn and memory without building it; else ask for a "
        "smaller one",
    )


def machine_memory() -> int | None:
    """The bytes that this machine, or the container, has; None where nobody tells."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if _OF_A_CONTAINER.is_file():
        text = _OF_A_CONTAINER.read_text().strip()
        limits += [int(text)] if text.isdigit() else []
    return min(limits, default=None)
