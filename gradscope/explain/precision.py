"""Counts the values of a run that narrower dtypes would lose.

Counts are exact: the limits come from PyTorch's own casts, and one pass over a tensor counts for
all dtypes and scales.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall
from gradscope.capture.graph import dense_parts
from gradscope.capture.hooks import Handle, hook_tensor, hookable_modules
from gradscope.capture.names import named_parameters
from gradscope.explain.shared.tracing_modes import ModuleCalls
from gradscope.nesting import find
from gradscope.records.report import PrecisionForecast

#: A magnitude's bits are an integer that grows with it.
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
#: Shift that leaves 15 leading bits.
_SHIFT = {torch.float32: 16, torch.float64: 48}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Cast:
    """A multiplication by ``scale`` in the tensor's precision, then a cast to ``dtype``."""

    dtype: str
    scale: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bits of the smallest magnitude that a cast does not flush to zero, and of the smallest
    that overflows."""

    alive: int
    broken: int


@functools.cache
def bounds(cast: Cast, source: torch.dtype) -> Bounds:
    """Return the magnitudes at which a cast from ``source`` (float32 or float64) loses elements.

    Casts are monotone, so a binary search over the bits finds the exact limits of the installed
    PyTorch.
    """
    top = _bits_of(float("inf"), source)
    target: torch.dtype = getattr(torch, cast.dtype)
    limit = _limit(target)

    def scaled(bits: int) -> torch.Tensor:
        return torch.tensor(bits, dtype=_BITS[source], device="cpu").view(source) * cast.scale

    def alive(bits: int) -> bool:
        return bool(scaled(bits).to(target).to(torch.float32) != 0)

    def broken(bits: int) -> bool:
        value = scaled(bits)
        kept = bool(value.to(target).to(torch.float32).isfinite())
        return not kept or float(value.to(torch.float32)) > limit  # wide casts go by float32

    return Bounds(_first(alive, 1, top), _first(broken, 1, top))


def _limit(dtype: torch.dtype) -> float:
    """Return the largest value that rounds to the largest finite one; beyond it, a cast clamps."""
    about = torch.finfo(dtype)
    step = about.eps * 2.0 ** math.floor(math.log2(about.max))
    odd = round(about.max / step) % 2  # a tie goes to the even neighbour, which then is beyond
    return math.nextafter(about.max + step / 2, 0) if odd else about.max + step / 2


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number from ``low`` to ``high`` for which ``holds`` is True, by
    bisection."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _bits_of(value: float, source: torch.dtype) -> int:
    return int(torch.tensor(value, dtype=source, device="cpu").view(_BITS[source]))


class Counter:
    """Counts the effects of several casts on a tensor's elements, in one pass."""

    def __init__(self, casts: Sequence[Cast]) -> None:
        self.casts = tuple(casts)
        self._ranks: dict[tuple[torch.dtype, torch.device], _Ranks] = {}

    @torch.no_grad()
    def count(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count the elements that each cast flushes to zero, those that overflow, and all elements:
        int64 of length 2 × casts + 1.

        Elements that are already zero, NaN or Inf are not counted.
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
    """All bounds in order, with the positions of each cast's bounds.

    ``bins`` has the leading bits of each bound, exponent first; ``mixed`` marks these bins.
    """

    edges: torch.Tensor
    bins: torch.Tensor
    mixed: torch.Tensor
    shift: int
    alive: torch.Tensor
    broken: torch.Tensor
    top: torch.Tensor

    def below(self, bits: torch.Tensor) -> torch.Tensor:
        """Return how many of the magnitudes' bits lie below each of the bounds.

        A histogram answers for full bins; only bins that contain a bound are searched.
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


DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Loss scales: none, a modest one, and the one that PyTorch's GradScaler begins with.
SCALES = (1.0, 2.0**8, 2.0**16)
#: Scales among which a safe one is searched.
POWERS = tuple(2.0**power for power in range(25))

_Key = tuple[str, int | None, str]  # name, call, kind


def forecast(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    *,
    dtypes: Sequence[str] = DTYPES,
    scales: Sequence[float] = SCALES,
) -> tuple[PrecisionForecast, ...]:
    """Forecast the share of non-zero finite elements that a cast would make zero or overflow.

    Runs forward and backward once, in the run's precision and without a loss scale. For each tensor
    it counts the effect of a cast to each dtype: for activations unscaled, for gradients at each
    loss scale. Counts are exact.

    Args:
        model: the model; its ``.grad`` must be None, and has the gradients of ``backward``
            afterwards.
        forward: runs the model and the loss, and returns the loss.
        backward: runs backward from the loss.
        dtypes: names of torch's floating-point dtypes.
        scales: the loss scales.

    Returns:
        For each dtype: the outputs of each call (kind "activation"); the gradient of each call's
        outputs and of each parameter, for each scale (kind "gradient"); and the totals at every
        power of two up to 2^24 (kind "total"). Tensors of zeros are left out.
    """
    counter = Counter([Cast(d, s) for d in dtypes for s in sorted({1.0, *scales, *POWERS})])
    tracer = _CastTracer(model, counter)
    try:
        with tracer.calls.observed(hookable_modules(model), after=tracer.returned):
            backward(forward())
    finally:
        tracer.release()
    for parameter, named in named_parameters(model).items():
        if parameter.grad is not None:
            tracer.add((named.name, None, "gradient"), parameter.grad)
    counts = {key: torch.stack(found).sum(0) for key, found in tracer.counts.items()}
    return tuple(_records(counter.casts, _read_back(counts), tuple(scales)))


class _CastTracer:
    """Counts the elements of each call's outputs and of their gradients."""

    def __init__(self, model: nn.Module, counter: Counter) -> None:
        self.calls = ModuleCalls(model, forecast.__code__)
        self.counts: dict[_Key, list[torch.Tensor]] = {}
        self._counter = counter
        self._handles: list[Handle] = []

    def returned(self, call: ModuleCall, output: Any) -> None:
        """Note the end of a module's forward; a checkpoint's recomputation is counted already."""
        for _, tensor in find(output, torch.Tensor):
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                continue  # one sample's, inside vmap or grad: it has no elements to count
            self.add((call.name, call.number, "activation"), tensor)
            if tensor.requires_grad:
                key = (call.name, call.number, "gradient")
                self._handles.append(hook_tensor(tensor, self._reader(key)))

    def add(self, key: _Key, tensor: torch.Tensor) -> None:
        """Count a tensor's elements under ``key``."""
        counts = self._counter.count(tensor)
        if counts.device.type != "meta":
            self.counts.setdefault(key, []).append(counts)

    def release(self) -> None:
        """Remove every hook that is still set."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _reader(self, key: _Key) -> Callable[[torch.Tensor | None], None]:
        def read(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                self.add(key, gradient)

        return read


_Counts = dict[_Key, list[int]]


def _read_back(counts: dict[_Key, torch.Tensor]) -> _Counts:
    """Fetch all counts from accelerators, in one transfer each."""
    devices: dict[torch.device, list[_Key]] = {}
    for key, found in counts.items():
        devices.setdefault(found.device, []).append(key)
    done: _Counts = {}
    for keys in devices.values():
        done.update(zip(keys, torch.stack([counts[key] for key in keys]).tolist(), strict=True))
    return {key: done[key] for key in counts if done[key][-1]}


def _records(
    casts: Sequence[Cast], counts: _Counts, scales: tuple[float, ...]
) -> Iterable[PrecisionForecast]:
    """Yield the activations in the order of forward, then gradients, then the totals, for each
    dtype."""
    for i, cast in enumerate(casts):
        for (name, call, kind), found in counts.items():
            if cast.scale in ((1.0,) if kind == "activation" else scales):
                share = _shares(found, i, len(casts))
                yield PrecisionForecast(
                    name, kind, cast.dtype, cast.scale, found[-1], *share, call=call
                )
        if cast.scale in POWERS:
            yield from _total(cast, i, len(casts), counts)


def _total(cast: Cast, i: int, n: int, counts: _Counts) -> Iterable[PrecisionForecast]:
    gradients = {key: found for key, found in counts.items() if key[2] == "gradient"}
    if not gradients:
        return
    parameters = _summed([found for key, found in gradients.items() if key[1] is None])
    everything = _summed(list(gradients.values()))
    under, over = _shares(parameters, i, n)[0], _shares(everything, i, n)[1]
    numel = parameters[-1] if parameters else 0
    yield PrecisionForecast("**", "total", cast.dtype, cast.scale, numel, under, over)


def _summed(counts: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]


def _shares(found: list[int], i: int, n: int) -> tuple[float, float]:
    """Return the shares of elements that cast ``i`` of ``n`` makes zero and infinite."""
    if not found:
        return 0.0, 0.0
    return found[i] / found[-1], found[n + i] / found[-1]
