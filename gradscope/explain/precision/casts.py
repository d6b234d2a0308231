"""What a cast to a narrower dtype loses, exactly: PyTorch's own casts say where zero and infinity
begin, and one pass over a tensor counts for every dtype and scale at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradscope.capture.graph import dense_parts

#: A magnitude's bits are an integer that grows with it.
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
#: What leaves 15 leading bits.
_SHIFT = {torch.float32: 16, torch.float64: 48}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Cast:
    """Multiply by ``scale`` in the tensor's own precision, then cast to ``dtype``."""

    dtype: str
    scale: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bits of the smallest magnitudes that a cast keeps from zero, and that it cannot hold."""

    alive: int
    broken: int


@functools.cache
def bounds(cast: Cast, source: torch.dtype) -> Bounds:
    """Where a cast from ``source``, float32 or float64, begins to lose elements.

    Casts are monotone, so a search over the bits finds the exact place, ties to even included, and
    whatever this PyTorch does with what is too large.
    """
    top = _bits_of(float("inf"), source)
    target: torch.dtype = getattr(torch, cast.dtype)
    limit = _limit(target)

    def scaled(bits: int) -> torch.Tensor:
        return torch.tensor(bits, dtype=_BITS[source]).view(source) * cast.scale

    def alive(bits: int) -> bool:
        return bool(scaled(bits).to(target).to(torch.float32) != 0)

    def broken(bits: int) -> bool:
        value = scaled(bits)
        kept = bool(value.to(target).to(torch.float32).isfinite())
        return not kept or float(value.to(torch.float32)) > limit  # wide casts go by float32

    return Bounds(_first(alive, 1, top), _first(broken, 1, top))


def _limit(dtype: torch.dtype) -> float:
    """What still rounds to the largest finite value, where a cast clamps to that (as to e4m3fn)."""
    about = torch.finfo(dtype)
    step = about.eps * 2.0 ** math.floor(math.log2(about.max))
    odd = round(about.max / step) % 2  # a tie goes to the even neighbour, which then is beyond
    return math.nextafter(about.max + step / 2, 0) if odd else about.max + step / 2


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from ``low`` up for which ``holds``, which it does for ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _bits_of(value: float, source: torch.dtype) -> int:
    return int(torch.tensor(value, dtype=source).view(_BITS[source]))


class Counter:
    """Counts what each of several casts would do to the elements of a tensor, in one pass."""

    def __init__(self, casts: Sequence[Cast]) -> None:
        self.casts = tuple(casts)
        self._ranks: dict[tuple[torch.dtype, torch.device], _Ranks] = {}

    @torch.no_grad()
    def count(self, tensor: torch.Tensor) -> torch.Tensor:
        """How many elements each cast makes zero, how many overflow, and how many there are.

        int64 of twice the number of casts, and one. Elements that are zero or not finite already
        are not counted.
        """
        total = torch.zeros(2 * len(self.casts) + 1, dtype=torch.int64, device=tensor.device)
        for part in _floating_parts(tensor.detach()):
            source = torch.float64 if part.dtype == torch.float64 else torch.float32
            ranks = self._at(source, part.device)
            for chunk in torch.split(part.reshape(-1), _CHUNK):
                below = ranks.below(chunk.to(source).abs().view(_BITS[source]))
                zero, finite = below[:1], below[ranks.top]
                total += torch.cat(
                    [below[ranks.alive] - zero, finite - below[ranks.broken], finite - zero]
                )
        return total

    def _at(self, source: torch.dtype, device: torch.device) -> _Ranks:
        key = (source, device)
        if key not in self._ranks:
            found = [bounds(cast, source) for cast in self.casts]
            top = _bits_of(float("inf"), source)
            edges = sorted({1, top, *(b.alive for b in found), *(b.broken for b in found)})
            rank = {edge: i for i, edge in enumerate(edges)}

            def placed(ranks: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
                return torch.tensor(ranks, dtype=dtype, device=device)

            bins = placed([edge >> _SHIFT[source] for edge in edges])
            mixed = torch.zeros(1 << 15, dtype=torch.bool, device=device)
            mixed[bins] = True
            self._ranks[key] = _Ranks(
                edges=placed(edges, _BITS[source]),
                bins=bins,
                mixed=mixed,
                shift=_SHIFT[source],
                alive=placed([rank[b.alive] for b in found]),
                broken=placed([rank[b.broken] for b in found]),
                top=placed([rank[top]]),
            )
        return self._ranks[key]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """All bounds in order, and where each cast's own are among them.

    ``bins`` holds for each the leading bits, exponent first, and ``mixed`` marks these bins.
    """

    edges: torch.Tensor
    bins: torch.Tensor
    mixed: torch.Tensor
    shift: int
    alive: torch.Tensor
    broken: torch.Tensor
    top: torch.Tensor

    def below(self, bits: torch.Tensor) -> torch.Tensor:
        """How many of some magnitudes' bits lie below each of the bounds.

        A histogram tells it of full bins; a search is needed only within those that have a bound.
        """
        bins = bits >> self.shift
        histogram = torch.bincount(bins, minlength=len(self.mixed))
        full = histogram.masked_fill(self.mixed, 0).cumsum(0)[self.bins]
        there = bits != 0  # zeros lie below every bound, and a relu gives many
        inside = bits.masked_select(self.mixed.index_select(0, bins) & there)
        found = torch.bucketize(inside, self.edges, out_int32=True, right=True)
        partly = torch.bincount(found, minlength=len(self.edges) + 1).cumsum(0)[:-1]
        return full + partly + (bits.numel() - there.sum())


def _floating_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()  # entries of one place add up
    parts = list(tensor.unbind()) if tensor.is_nested else dense_parts(tensor)
    parts = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in parts]
    return [p for p in parts if p.is_floating_point() and p.numel() and p.device.type != "meta"]
