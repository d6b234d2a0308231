"""A tensor becomes numbers, exactly enough to be believed. A new statistic is one more figure here.

Fast where memory bandwidth allows: float32 reductions over blocks whose partial results are added
in float64, because one float32 reduction over millions of elements errs by up to 1e-3. Exact in
float64 wherever a value is not finite or its square would leave the range of float32.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.parameter import is_lazy

from gradscope.records.tensors import TensorStats, Value

BLOCK = 2048  # a float32 sum of squares over this many equal values still errs below 1e-6
SMALL = 16  # tensors up to this size keep their values
_CHUNK = 1 << 20  # elements that are looked at together; the exact path holds them in float64
_WORDS = 128  # how many words of eight truths are added before their bytes are
#: Largest magnitudes whose squares neither overflow nor sink below what float32 (float64) resolves.
_RANGE = {torch.float32: (1e-12, 1e15), torch.float64: (1e-130, 1e130)}


@dataclass(slots=True, weakref_slot=True, eq=False)
class Deferred:
    """Numbers that still lie on an accelerator; ``resolve`` reads many of them back at once."""

    head: TensorStats
    numbers: torch.Tensor  # float64 [8]: norm mean std min max zeros nan inf
    values: torch.Tensor | None
    found: TensorStats | None = None  # once they have been read

    def __post_init__(self) -> None:
        with _lock:
            _waiting.add(self)


#: To read is to wait for the device, so whatever else waits there by then is read as well.
_waiting: weakref.WeakSet[Deferred] = weakref.WeakSet()
_lock = threading.Lock()  # each device has a thread of its own in backward

Measured = TensorStats | Deferred


def measure(tensor: torch.Tensor) -> Measured:
    """The statistics of one tensor, of any dtype, layout and size.

    On the CPU they are there at once; on an accelerator they are left in device memory, so that no
    hook waits for the device.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if is_lazy(tensor):  # a lazy module's parameter has no shape before its first call
        return TensorStats((), dtype, 0)
    tensor = tensor.detach()  # of what follows autograd sees nothing
    if tensor.is_nested:
        head = TensorStats((tensor.size(0), -1), dtype, sum(t.numel() for t in tensor.unbind()))
        parts = [part.reshape(-1) for part in tensor.unbind()]
        return _numbers(head, torch.cat(parts) if parts else tensor.new_empty(0))
    head = head_of(tensor)
    kind = tensor.device.type
    if kind == "meta":
        return head
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return _numbers(head, tensor)
    return _numbers(head, tensor)


def head_of(tensor: torch.Tensor) -> TensorStats:
    """Shape, dtype and size alone."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorStats(tuple(map(int, tensor.shape)), dtype, tensor.numel())


def resolve(measured: Iterable[Measured]) -> dict[int, TensorStats]:
    """Finished statistics by ``id``, read from each device in one transfer."""
    done: dict[int, TensorStats] = {}
    for item in measured:
        if isinstance(item, TensorStats):
            done[id(item)] = item
        else:
            done[id(item)] = item.found or _read_along(item)
    return done


def flags(truths: torch.Tensor) -> Measured:
    """Some truths [n], for ``resolve`` to read with the rest: 0 and 1 in ``values``."""
    head = TensorStats(tuple(truths.shape), "bool", truths.numel())
    if on_host(truths):
        return replace(head, values=tuple(truths.int().tolist()))
    return Deferred(head, truths.new_zeros(8, dtype=torch.float64), truths.double())


def _read_along(item: Deferred) -> TensorStats:
    """Finish ``item`` and all else that waits on its device.

    Raises:
        RuntimeError: the device answers nothing.
    """
    with _lock:
        items = [item, *(w for w in _waiting if w.numbers.device == item.numbers.device)]
        _waiting.difference_update(items)  # whatever happens: nobody else stumbles over them
    items = list(dict.fromkeys(items))
    try:
        _read(items)
    except RuntimeError:
        readable = [each for each in items if _readable(each)]
        if not readable:
            raise
        # One of them has no numbers to read (inside `vmap`, fake): it goes without.
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
        item.found = finish(item.head, numbers, values)


def on_host(tensor: torch.Tensor) -> bool:
    """Whether a number of it can be had without waiting for a device."""
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
    flat, copies = _flat(tensor)
    if not on_host(flat):
        return Deferred(head, _exact(flat, copies), None if small is None else small.double())
    values, numbers = None, None
    if small is not None:
        listed = small.tolist()
        values = _values(listed, head)
        numbers = None if tensor.is_complex() else _few(listed)
    numbers = numbers or _fast(flat, copies)
    if numbers is None:
        numbers = _exact(flat, copies).tolist()
    return finish(head, numbers, values)


def _flat(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """All elements in one dimension, in memory order, and how often an expanded one repeats them.

    The gradient of a sum is one number expanded to the tensor's shape: it is read once.
    """
    if tensor.is_contiguous():
        return tensor.view(-1), 1
    copies = 1
    order: list[tuple[int, int]] = []
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            copies *= size
            tensor = tensor.narrow(axis, 0, 1)
        order.append((-abs(stride), axis))
    if not tensor.is_contiguous():
        tensor = tensor.permute([axis for _, axis in sorted(order)])
    return tensor.reshape(-1), copies


def _few(numbers: list[float]) -> list[float] | None:
    """The eight numbers of a handful of elements, without a reduction of PyTorch's for each.

    None where a value or a sum leaves what float64 holds.
    """
    n = len(numbers)
    top = max(map(abs, numbers))
    if not top < 1e300:
        return None
    mean = math.fsum(numbers) / n
    if not math.isfinite(mean):  # `max` may have passed over a NaN, a sum never does
        return None
    low, high = float(min(numbers)), float(max(numbers))
    mean = min(max(mean, low), high)
    std = math.hypot(*(number - mean for number in numbers)) / math.sqrt(n)
    zeros = sum(number == 0 for number in numbers)
    return [math.hypot(*numbers), mean, std, low, high, float(zeros), 0.0, 0.0]


def _fast(flat: torch.Tensor, copies: int) -> list[float] | None:
    """norm mean std min max zeros nan inf on the CPU, or None where only ``_exact`` is right."""
    if flat.is_complex():
        flat = flat.abs()
    if not flat.is_floating_point():
        flat = flat.double()
    limits = _RANGE.get(torch.float32 if flat.dtype.itemsize < 4 else flat.dtype)
    if limits is None:
        return None
    n = flat.numel()
    low, high, total, squares, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for chunk in (flat,) if n <= _CHUNK else torch.split(flat, _CHUNK):
        # A chunk is read several times while the processor's caches hold it.
        chunk = chunk.float() if chunk.dtype.itemsize < 4 else chunk
        bounds = torch.aminmax(chunk)
        least, most = bounds.min.item(), bounds.max.item()
        # A NaN or an infinity among the values shows in the bounds and fails this comparison too.
        if not max(-least, most) < limits[1]:
            return None
        low, high = min(low, least), max(high, most)
        if least <= 0.0 <= most:
            zeros += chunk.numel() if least == most else _zeros(chunk)
        part_total, part_squares = _sums(chunk)
        total += part_total
        squares += part_squares
    if low == high == 0.0:
        return [0.0, 0.0, 0.0, 0.0, 0.0, float(n * copies), 0.0, 0.0]
    if not limits[0] < max(-low, high):
        return None
    mean = total / n
    variance = squares / n - mean * mean
    if mean * mean > 25.0 * variance:
        variance = _shifted_variance(flat, mean)
    # `mean` may leave the bounds by a rounding; a constant tensor must not look otherwise.
    mean = min(max(mean, low), high)
    norm = math.sqrt(squares) * math.sqrt(copies)
    return [norm, mean, math.sqrt(max(variance, 0.0)), low, high, float(zeros * copies), 0.0, 0.0]


def _sums(chunk: torch.Tensor) -> tuple[float, float]:
    """Σx and Σx²: within a block in the tensor's own precision, across blocks in float64.

    PyTorch adds a plain sum in pairs, so that one is exact enough; a norm it adds in a row.
    """
    n = chunk.numel()
    total = chunk.sum().item()
    if n <= BLOCK:
        return total, torch.dot(chunk, chunk).item()
    squares = 0.0
    whole = n - n % BLOCK
    blocks = torch.linalg.vector_norm(chunk[:whole].view(-1, BLOCK), dim=1).double()
    squares = torch.dot(blocks, blocks).item()
    if whole < n:
        tail = chunk[whole:]
        squares += torch.dot(tail, tail).item()
    return total, squares


def _zeros(chunk: torch.Tensor) -> int:
    """How many elements are zero.

    ``count_nonzero`` takes a branch for each element, and a comparison is slower than a conversion
    to bool. Eight of its bytes are added as one word: the sum of up to 255 such words carries
    nothing from byte to byte.
    """
    n = chunk.numel()
    if n < _WORDS * 8:
        return n - int(chunk.bool().sum())
    whole = n - n % (_WORDS * 8)
    truths = chunk.bool()
    words = truths[:whole].view(torch.int64).view(-1, _WORDS).sum(1)
    count = int(words.view(torch.uint8).sum())
    return n - count - (int(truths[whole:].sum()) if whole < n else 0)


def _shifted_variance(flat: torch.Tensor, mean: float) -> float:
    """The variance about a pilot: Σx² − (Σx)²/n cancels where the mean dwarfs the spread."""
    total = squares = 0.0
    for chunk in torch.split(flat, _CHUNK):
        # In the tensor's own precision the pilot would be rounded to that of half floats.
        wide = chunk.float() if chunk.dtype.itemsize < 4 else chunk
        part_total, part_squares = _sums(wide - mean)
        total += part_total
        squares += part_squares
    shift = total / flat.numel()
    return squares / flat.numel() - shift * shift


def _exact(flat: torch.Tensor, copies: int) -> torch.Tensor:
    """The eight numbers in float64, scaled by the largest magnitude, over the finite elements.

    No value is read back, so it serves accelerators too.
    """
    zero = torch.zeros((), dtype=torch.float64, device=flat.device)
    infinity = zero + math.inf
    low, high, zeros, nan, inf = infinity, -infinity, zero, zero, zero
    for values, finite, isnan in _chunks(flat):
        low = torch.minimum(low, torch.where(finite, values, infinity).min())
        high = torch.maximum(high, torch.where(finite, values, -infinity).max())
        zeros = zeros + (values == 0).sum()
        nan = nan + isnan.sum()
        inf = inf + (~(finite | isnan)).sum()
    n = flat.numel() - nan - inf
    scale = torch.maximum(low.abs(), high.abs())
    scale = torch.where((scale == 0) | ~torch.isfinite(scale), zero + 1.0, scale)
    total = squares = deviation = zero
    for values, finite, _ in _chunks(flat):
        scaled = torch.where(finite, values / scale, zero)
        total = total + scaled.sum()
        squares = squares + scaled.square().sum()
    mean = total / n
    for values, finite, _ in _chunks(flat):
        deviation = deviation + torch.where(finite, values / scale - mean, zero).square().sum()
    norm = squares.sqrt() * scale * math.sqrt(copies)
    std = (deviation / n).sqrt() * scale
    counts = [count * copies for count in (zeros, nan, inf)]
    return torch.stack([norm, mean * scale, std, low, high, *counts])


def _chunks(flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Float64 values (a modulus where complex), which are finite, and which are NaN."""
    for chunk in torch.split(flat, _CHUNK if flat.device.type == "cpu" else _CHUNK << 4):
        if chunk.is_complex():
            wide = chunk.to(torch.complex128)
            yield wide.abs(), torch.isfinite(wide), torch.isnan(wide)
        else:
            values = chunk.double()
            yield values, torch.isfinite(values), torch.isnan(values)


def _sparse(head: TensorStats, tensor: torch.Tensor) -> Measured:
    """Stored values joined with the zeros that are not (Chan et al. 1979 for the variance)."""
    stored = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.values()
    inner = measure(stored)
    if isinstance(inner, Deferred):
        # Alone: in the middle of backward, other streams may still be at work on the others.
        _read([inner])
        assert inner.found is not None
        inner = inner.found
    implicit = head.numel - inner.numel
    if inner.norm is None or inner.mean is None or inner.std is None:
        zeros = (inner.zeros or 0) + implicit
        none = None if implicit == 0 else 0.0  # of nothing finite but zeros, each is zero
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
    head: TensorStats, numbers: list[float], values: tuple[Value, ...] | None
) -> TensorStats:
    """A tensor's shape and its eight numbers as a record; a NaN among them is what there is not."""
    *moments, zeros, nan, inf = numbers
    found: list[float | None] = [*moments]
    if nan + inf:
        nothing = nan + inf >= head.numel  # finite, that is
        found = [None if nothing or math.isnan(moment) else moment for moment in moments]
    norm, mean, std, low, high = found
    counts = (int(zeros), int(nan), int(inf))
    return TensorStats(
        head.shape, head.dtype, head.numel, norm, mean, std, low, high, *counts, values
    )


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
