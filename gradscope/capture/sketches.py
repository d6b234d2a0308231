"""A tensor to the numbers of its sketch: the same on every machine, device and memory layout."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from gradscope.records.full_samples import SKETCH_WIDTH

_CHUNK = 1 << 18  # elements that are held in float64 at a time
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Projection:
    """The numbers of a sketch, in float64 on the CPU; the norm of the finite elements."""

    numbers: torch.Tensor
    norm: float
    nonfinite: int

    def __add__(self, other: Projection) -> Projection:
        """Of the sum of two tensors; its norm is the sketch's."""
        numbers = self.numbers + other.numbers
        norm = float(torch.linalg.vector_norm(numbers))
        return Projection(numbers, norm, self.nonfinite + other.nonfinite)


@torch.no_grad()
def projected(tensor: torch.Tensor) -> Projection:
    """The projection of a tensor of any shape and dtype; of complex numbers both parts count."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    numbers = torch.zeros(SKETCH_WIDTH, dtype=torch.float64, device="cpu")
    norm, nonfinite = torch.zeros((), dtype=torch.float64, device="cpu"), 0
    for n, chunk in enumerate(torch.split(tensor.reshape(-1), _CHUNK)):
        values = chunk.cpu().double()
        size = torch.linalg.vector_norm(values)
        if not bool(size.isfinite()):
            finite = values.isfinite()
            nonfinite += int((~finite).sum())
            values = values.where(finite, 0.0)
            size = torch.linalg.vector_norm(values)
        sums = torch.bincount(_places(n)[: len(values)], values, minlength=2 * SKETCH_WIDTH)
        numbers += sums[:SKETCH_WIDTH] - sums[SKETCH_WIDTH:]
        norm = torch.hypot(norm, size)
    return Projection(numbers, float(norm), nonfinite)


@functools.lru_cache(maxsize=64)
def _places(chunk: int) -> torch.Tensor:
    """The number to which each element of a chunk goes; ``SKETCH_WIDTH`` more: it is subtracted."""
    x = torch.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK, device="cpu")
    # T. Mueller's integer hash, whose products fit into int64.
    x = (x ^ (x >> 32)) & _LOW
    for _ in range(2):
        x = (((x >> 16) ^ x) * 0x45D9F3B) & _LOW
    x = (x >> 16) ^ x
    return (x % SKETCH_WIDTH + SKETCH_WIDTH * ((x >> 20) & 1)).to(torch.uint8)
