"""The CPU memory of a sampled step: what a sample needs, and how it is released."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.capture.shards import is_spread, local, placements_of

#: Memory for copies of weights: a share of the process's, or this many bytes.
_SHARE, _LEAST_ROOM = 0.02, 1 << 25
#: Copies of fewer bytes than these do not fragment the heap.
_LARGE = 1 << 20
#: Bytes: a cache line.
_ALIGNED = 64
#: In a smaller process fragmentation does not matter.
_LARGE_PROCESS = 1 << 29


def weight_copies(
    parameters: Sequence[nn.Parameter], turn: int
) -> dict[nn.Parameter, torch.Tensor]:
    """Copy as many weights as memory allows; each turn copies others.

    Only the turn decides which ones, because all processes must copy their parts of a sharded
    weight in the same sample.
    """
    groups = _groups([p for p in parameters if not is_lazy(p)])
    chosen = groups[turn % len(groups)] if groups else []
    return dict(zip(chosen, _copies([local(p).detach() for p in chosen]), strict=True))


def _groups(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Split the weights, in their order, into groups whose copies fit into memory."""
    sizes = [_even_size(parameter) for parameter in parameters]
    # The process has at least the weights and their gradients. The rest of its memory may differ
    # between processes.
    process = 2 * sum(sizes)
    if not any(map(is_spread, parameters)):
        process = max(process, _resident())
    room = max(_LEAST_ROOM, int(_SHARE * process))
    groups: list[list[nn.Parameter]] = []
    left = -1
    for parameter, size in zip(parameters, sizes, strict=True):
        left -= size
        if left < 0:
            groups.append([])
            left = room - size
        groups[-1].append(parameter)
    return groups


def _even_size(parameter: nn.Parameter) -> int:
    """Return a weight's bytes. If it is sharded, return an even share, the same in all
    processes."""
    kinds = placements_of(parameter)
    mesh: Any = getattr(parameter, "device_mesh", None)
    parts: int = math.prod(mesh.size(axis) for axis, kind in enumerate(kinds) if kind.is_shard())
    return parameter.numel() * parameter.element_size() // parts


class Heap:
    """Returns the heap's free memory to the system after a sample in a large process.

    The memory that a sample allocates lies between the script's tensors. glibc returns only the top
    of its heap, and the next steps would not find fitting free blocks. ``malloc_trim`` returns all
    free memory. It takes longer for a larger heap, and the next step must request its memory again.
    So it only runs after the process has grown since the last time, or since the first sample
    began.
    """

    def __init__(self) -> None:
        self._largest: int | None = None  # bytes of the process, just before the last trim

    def sample_begins(self) -> None:
        """Note the size of the process before the first sample."""
        if self._largest is None:
            self._largest = _resident()

    def give_back(self) -> None:
        """Trim the heap, if the process grew by more than copies of weights may take."""
        now = _resident()
        largest = self._largest or 0
        if now < max(_LARGE_PROCESS, largest + max(_LEAST_ROOM, int(_SHARE * now))):
            return
        self._largest = now
        _trim()


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's own
        trim(0)


def _copies(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy weights.

    Large copies on the CPU share one mapping outside the heap, which returns to the system at once.
    On the heap they would lie between the script's gradients, and fragment it. A huge page takes
    one page fault where small pages take 512.
    """
    ends = list(accumulate(map(_room_for, weights)))
    if not ends or ends[-1] < _LARGE:
        return [weight.clone() for weight in weights]
    memory = mmap.mmap(-1, ends[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    copies = []
    for weight, start, end in zip(weights, [0, *ends], ends, strict=False):
        if start == end:
            copies.append(weight.clone())
            continue
        flat = torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=start)
        copies.append(flat.as_strided(weight.shape, weight.stride()).copy_(weight))
    return copies


def _room_for(weight: torch.Tensor) -> int:
    """Return the bytes for the copy of a plain weight on the CPU, aligned; 0 for any other
    weight."""
    size = weight.numel() * weight.element_size()
    plain = (
        type(weight.data) is torch.Tensor
        and weight.is_cpu
        and weight.layout is torch.strided
        and not (weight.is_quantized or weight.is_nested)
        and (weight.is_contiguous() or _has_channels_last(weight))
    )
    return -(-size // _ALIGNED) * _ALIGNED if plain else 0


def _has_channels_last(weight: torch.Tensor) -> bool:
    return weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)


def _resident() -> int:
    """Return the process's resident memory in bytes; 0 if the system is not Linux."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * mmap.PAGESIZE
