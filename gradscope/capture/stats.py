"""Reduces a tensor, or many small ones together, to statistics. ``reductions.py`` computes them. A
new statistic needs a change in both files.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.parameter import is_lazy

from gradscope.capture import one_pass
from gradscope.capture.one_pass import on_cuda
from gradscope.capture.reductions import (
    BLOCK,
    exact,
    fast,
    flat_elements,
    in_memory_order,
    of_numbers,
)
from gradscope.capture.shards import PLAIN, local
from gradscope.records.tensors import TensorStats, Value

SMALL = 16  # tensors up to this size keep their values


@dataclass(slots=True, weakref_slot=True, eq=False)
class Deferred:
    """Numbers that are still on an accelerator; ``resolve`` reads many of them back at once."""

    head: TensorStats
    numbers: torch.Tensor  # float64 [8]: norm mean std min max zeros nan inf
    values: torch.Tensor | None
    found: TensorStats | None = None  # once they have been read

    def __post_init__(self) -> None:
        with _lock:
            _waiting.add(self)


#: A read waits for the device, so it also reads all other numbers there.
_waiting: weakref.WeakSet[Deferred] = weakref.WeakSet()
_lock = threading.Lock()  # each device has its own thread in backward

Measured = TensorStats | Deferred


def measure(tensor: torch.Tensor) -> Measured:
    """Measure one tensor, or its shard, of any dtype, layout and size.

    On the CPU this returns statistics; on an accelerator it returns numbers in device memory, so
    that no hook waits for the device.
    """
    tensor = local(tensor)
    if is_lazy(tensor):
        return head_of(tensor)
    count = tensor.numel()
    if count > SMALL:  # enough for most tensors; the code below takes longer than a small tensor
        numbers = one_pass.numbers(tensor)
        if numbers is not None:
            return finish(tuple(tensor.shape), _name(tensor.dtype), count, numbers)
    tensor = tensor.detach()  # autograd ignores the rest of this function
    head = head_of(tensor)
    if tensor.is_nested:
        return _numbers(head, flat_elements(tensor))
    kind = tensor.device.type
    if kind == "meta":
        return head
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return _numbers(head, tensor)
    return _numbers(head, tensor)


def head_of(tensor: torch.Tensor) -> TensorStats:
    """Return shape, dtype and size only."""
    tensor = local(tensor)
    dtype = _name(tensor.dtype)
    if is_lazy(tensor):  # a lazy module's parameter has no shape before its first call
        return TensorStats((), dtype, 0)
    if tensor.is_nested:
        return TensorStats((tensor.size(0), -1), dtype, sum(t.numel() for t in tensor.unbind()))
    return TensorStats(tuple(map(int, tensor.shape)), dtype, tensor.numel())


def resolve(measured: Iterable[Measured]) -> dict[int, TensorStats]:
    """Return finished statistics by ``id``, read from each device in one transfer."""
    done: dict[int, TensorStats] = {}
    for item in measured:
        if isinstance(item, TensorStats):
            done[id(item)] = item
        else:
            done[id(item)] = item.found or _read_along(item)
    return done


def flags(truths: torch.Tensor) -> Measured:
    """Wrap booleans [n], so that ``resolve`` reads them with the rest, as 0 and 1 in ``values``."""
    head = TensorStats(tuple(truths.shape), "bool", truths.numel())
    if on_host(truths):
        return replace(head, values=tuple(truths.int().tolist()))
    return Deferred(head, truths.new_zeros(8, dtype=torch.float64), truths.double())


def _read_along(item: Deferred) -> TensorStats:
    """Finish ``item`` and all other numbers on its device.

    Raises:
        RuntimeError: the numbers cannot be read from the device.
    """
    with _lock:
        items = [item, *(w for w in _waiting if w.numbers.device == item.numbers.device)]
        _waiting.difference_update(items)  # also if the read fails: others must not wait
    items = list(dict.fromkeys(items))
    try:
        _read(items)
    except RuntimeError:
        readable = [each for each in items if _readable(each)]
        if not readable:
            raise
        # One of them has no readable numbers (inside `vmap`, fake): it is left out.
        for each in items:
            each.found = each.found or each.head
    assert item.found is not None
    return item.found


def _readable(item: Deferred) -> bool:
    try:
        _read([item])
    except RuntimeError:
        return False
    return True


def _read(items: Sequence[Deferred]) -> None:
    """Finish these, in one transfer."""
    pieces = [p for item in items for p in (item.numbers, item.values) if p is not None]
    flat = iter(torch.cat(pieces).tolist())
    for item in items:
        numbers = [next(flat) for _ in range(8)]
        values = None
        if item.values is not None:
            values = _values([next(flat) for _ in range(item.values.numel())], item.head)
        head = item.head
        item.found = finish(head.shape, head.dtype, head.numel, numbers, values)


def on_host(tensor: torch.Tensor) -> bool:
    """Return True if reading a number needs no wait for a device."""
    return tensor.device.type == "cpu"


def _numbers(head: TensorStats, tensor: torch.Tensor) -> Measured:
    """Dispatch on layout and dtype; ``tensor`` is detached."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        if tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]
            tensor = tensor.to_dense()
        else:
            return _sparse(head, tensor)
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    if head.numel == 0:
        return replace(head, zeros=0, nan=0, inf=0, values=())
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    small = None
    if head.numel <= SMALL:
        small = tensor.reshape(-1)
        small = torch.view_as_real(small).reshape(-1) if small.is_complex() else small
    if not on_host(tensor):
        ordered, copies = in_memory_order(tensor)
        deferred = on_cuda.numbers(ordered, copies)
        if deferred is None:
            deferred = exact(ordered, copies)
        # A copy also of float64: what follows may write to the tensor before it is read.
        kept = None if small is None else small.to(torch.float64, copy=True)
        return Deferred(head, deferred, kept)
    values, numbers = None, None
    if small is not None:
        listed = small.tolist()
        values = _values(listed, head)
        numbers = None if tensor.is_complex() else of_numbers(listed)
    return finish(head.shape, head.dtype, head.numel, numbers or _on_host(tensor), values)


def _on_host(tensor: torch.Tensor) -> list[float]:
    """Compute the eight numbers by the fastest exact method for these elements."""
    found = one_pass.numbers(tensor)
    if found is None:
        ordered, copies = in_memory_order(tensor)
        found = fast(ordered, copies) or exact(ordered, copies).tolist()
    return found


def _sparse(head: TensorStats, tensor: torch.Tensor) -> Measured:
    """Combine the stored values with the zeros that are not stored (variance: Chan et al. 1979)."""
    stored = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.values()
    inner = measure(stored)
    if isinstance(inner, Deferred):
        # Read this one alone: during backward, other streams may still compute the others.
        _read([inner])
        assert inner.found is not None
        inner = inner.found
    implicit = head.numel - inner.numel
    if inner.norm is None or inner.mean is None or inner.std is None:
        zeros = (inner.zeros or 0) + implicit
        none = None if implicit == 0 else 0.0  # if only zeros are finite, all are zero
        moments = (none, none, none, none, none)
        counts = (zeros, inner.nan, inner.inf)
        return TensorStats(head.shape, head.dtype, head.numel, *moments, *counts)
    finite = inner.numel - (inner.nan or 0) - (inner.inf or 0)
    n = finite + implicit
    squares = finite * inner.std**2 + inner.mean**2 * finite * implicit / n
    bounds = [inner.min or 0.0, inner.max or 0.0] + ([0.0] if implicit else [])
    return replace(
        head,
        norm=inner.norm,
        mean=inner.mean * finite / n,
        std=math.sqrt(squares / n),
        min=min(bounds),
        max=max(bounds),
        zeros=(inner.zeros or 0) + implicit,
        nan=inner.nan,
        inf=inner.inf,
    )


def finish(
    shape: tuple[int, ...],
    dtype: str,
    numel: int,
    numbers: list[float],
    values: tuple[Value, ...] | None = None,
) -> TensorStats:
    """Return a tensor's eight numbers as a record; NaN means unknown."""
    *moments, zeros, nan, inf = numbers
    found: list[float | None] = [*moments]
    if nan + inf:
        nothing = nan + inf >= numel  # finite, that is
        found = [None if nothing or math.isnan(moment) else moment for moment in moments]
    norm, mean, std, low, high = found
    counts = (int(zeros), int(nan), int(inf))
    return TensorStats(shape, dtype, numel, norm, mean, std, low, high, *counts, values)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _values(numbers: list[float], head: TensorStats) -> tuple[Value, ...]:
    spelled = [_spell(number) for number in numbers]
    if not head.dtype.startswith("complex"):
        return tuple(spelled)
    return tuple(zip(spelled[::2], spelled[1::2], strict=True))


def _spell(number: float) -> float | str:
    if not isinstance(number, float):
        return int(number)  # a bool counts as 0 or 1
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


_ROWS = 1 << 19  # elements that are held in float64 at a time
#: Dtypes whose squares always fit float64.
_NARROW = {torch.float32, torch.bfloat16, torch.float16}


def measure_all(tensors: Iterable[torch.Tensor]) -> list[Measured]:
    """Measure each tensor. Without the compiled library, tensors of one size become rows of one
    matrix."""
    tensors = list(map(local, tensors))
    if one_pass.is_compiled():
        return [measure(tensor) for tensor in tensors]
    done: list[Measured | None] = [None] * len(tensors)
    alike: dict[tuple[int, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        if _is_here(tensor) and SMALL < tensor.numel() <= BLOCK:
            alike.setdefault((tensor.numel(), tensor.dtype), []).append(i)
    for (numel, _), places in alike.items():
        at_once = max(1, _ROWS // numel)
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            if len(some) > 1:
                found = _rows([tensors[i] for i in some])
                for i, stats in zip(some, found, strict=True):
                    done[i] = stats
    return [measure(t) if d is None else d for t, d in zip(tensors, done, strict=True)]


@torch.no_grad()
def surely_finite(tensor: torch.Tensor) -> bool:
    """Return True if the sum proves that no element is NaN or Inf.

    False also if the sum leaves the dtype's range, and for a tensor that is not plain.
    """
    tensor = local(tensor)
    return _is_here(tensor) and math.isfinite(tensor.sum().item())


def _is_here(tensor: torch.Tensor) -> bool:
    """Return True for a plain tensor in CPU memory with a common floating dtype."""
    return (
        type(tensor) in PLAIN
        and not is_lazy(tensor)
        and on_host(tensor)
        and tensor.layout == torch.strided
        and tensor.dtype in _NARROW
    )


@torch.no_grad()
def _rows(tensors: Sequence[torch.Tensor]) -> list[TensorStats | None]:
    """Return the statistics of each; None if an element is NaN or Inf."""
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    rows = torch.stack([tensor.detach().reshape(-1) for tensor in tensors]).double()
    n = rows.shape[1]
    low, high = rows.amin(1), rows.amax(1)
    mean = torch.minimum(torch.maximum(rows.mean(1), low), high)
    zeros = n - rows.bool().sum(1)
    norm = torch.linalg.vector_norm(rows, dim=1)
    std = torch.linalg.vector_norm(rows.sub_(mean[:, None]), dim=1) / n**0.5
    figures = torch.stack([norm, mean, std, low, high, zeros]).T
    finite = torch.isfinite(figures).all(1).tolist()
    return [
        finish(tuple(tensor.shape), dtype, n, [*numbers, 0.0, 0.0]) if full else None
        for tensor, numbers, full in zip(tensors, figures.tolist(), finite, strict=True)
    ]
