"""The processor's memory while a training is looked at: what looking takes, and gives back."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from gradscope.capture.shards import local
from gradscope.training.models import Model

#: What copies of weights may take: a share of the process's memory, or so many bytes.
_SHARE, _LEAST_ROOM = 0.02, 1 << 25
#: Copies of fewer bytes than these leave no gaps that matter.
_LARGE = 1 << 20
#: Of a smaller process the gaps do not matter.
_LARGE_PROCESS = 1 << 29


def weight_copies(
    parameters: Sequence[nn.Parameter], model: Model
) -> dict[nn.Parameter, torch.Tensor]:
    """Copies of the weights, of as many as memory allows: of the others at the next look."""
    if not parameters:
        return {}
    start = model.copied % len(parameters)
    left = max(_LEAST_ROOM, int(_SHARE * _resident()))
    copies: dict[nn.Parameter, torch.Tensor] = {}
    for parameter in (*parameters[start:], *parameters[:start]):
        own = local(parameter).detach()
        left -= own.numel() * own.element_size()
        if copies and left < 0:
            break
        copies[parameter] = _copy(own)
        model.copied += 1
    return copies


def give_back() -> None:
    """Return what is free in the heap to the system, after a look in a large process.

    What a look allocates lies between the script's gradients: glibc gives back the top of its heap
    alone, and the next steps would find gaps that do not fit. ``malloc_trim`` gives back all.
    """
    if _resident() >= _LARGE_PROCESS:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # glibc's own
            trim(0)


def _copy(weight: torch.Tensor) -> torch.Tensor:
    """On the processor a large copy has memory of its own, which goes back to the system at once.

    From the heap it would come to lie between the script's gradients, and leave gaps there.
    """
    size = weight.numel() * weight.element_size()
    if type(weight.data) is not torch.Tensor or not weight.is_cpu or size < _LARGE:
        return weight.clone()
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = torch.frombuffer(mmap.mmap(-1, size, private), dtype=weight.dtype)
    return memory.view(weight.shape).copy_(weight)


def _resident() -> int:
    """The bytes of memory that the process has; 0 elsewhere than on Linux."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * mmap.PAGESIZE
