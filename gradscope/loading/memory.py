"""Whether a model fits into this machine's memory: what cannot fit is reported before it is
built."""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.errors import ConfigError, Place
from gradscope.machine import machine_memory
from gradscope.typeset.numbers import size


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
