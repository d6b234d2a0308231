"""Eight numbers of many elements: norm, mean, std, min, max, zeros, NaN and Inf.

Fast where memory bandwidth allows: float32 reductions over blocks whose partial results are added
in float64, because one float32 reduction over millions of elements errs by up to 1e-3. If a value
is NaN or Inf, or its square leaves the range of float32, an exact path computes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from gradscope.capture import one_pass
from gradscope.capture.shards import local
from gradscope.records.tensors import TensorStats

BLOCK = 2048  # a float32 sum of squares over this many equal values still errs below 1e-6
_CHUNK = 1 << 20  # elements that are reduced together; the exact path holds them in float64
_FEW = 1 << 16  # up to this many elements, NumPy's one thread is as fast as PyTorch's several
_WORDS = 128  # number of words of eight booleans that are added before their bytes are
#: Magnitudes whose squares neither overflow nor underflow in float32 (float64).
_RANGE = {torch.float32: (1e-12, 1e15), torch.float64: (1e-130, 1e130)}


def in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a view of all distinct elements, with the innermost axis in memory last, and the
    number of repetitions of each.

    The gradient of a sum is one number, expanded to the tensor's shape: it is read once.
    """
    if tensor.is_contiguous():
        return tensor, 1
    copies = 1
    order: list[tuple[int, int]] = []
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            copies *= size
            tensor = tensor.narrow(axis, 0, 1)
        order.append((-abs(stride), axis))
    if not tensor.is_contiguous():
        tensor = tensor.permute([axis for _, axis in sorted(order)])
    return tensor, copies


def _flat_chunks(tensor: torch.Tensor, most: int) -> Iterator[torch.Tensor]:
    """Yield all elements in chunks of one dimension; only a tensor that is not contiguous is
    copied."""
    if tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), most)
    elif tensor.numel() <= most:
        yield tensor.reshape(-1)
    else:
        rows = most // (tensor.numel() // tensor.shape[0])
        for part in torch.split(tensor, rows) if rows else tensor:
            yield from _flat_chunks(part, most)


def of_numbers(numbers: list[float]) -> list[float] | None:
    """Return the eight statistics of a few elements, computed in Python: cheaper than eight
    reductions.

    None if a value or a sum exceeds the range of float64.
    """
    n = len(numbers)
    top = max(map(abs, numbers))
    if not top < 1e300:
        return None
    mean = math.fsum(numbers) / n
    if not math.isfinite(mean):  # `max` may have missed a NaN; a sum never does
        return None
    low, high = float(min(numbers)), float(max(numbers))
    mean = min(max(mean, low), high)
    std = math.hypot(*(number - mean for number in numbers)) / math.sqrt(n)
    zeros = sum(number == 0 for number in numbers)
    return [math.hypot(*numbers), mean, std, low, high, float(zeros), 0.0, 0.0]


def fast(tensor: torch.Tensor, copies: int) -> list[float] | None:
    """Return norm, mean, std, min, max, zeros, nan, inf on the CPU; None if it needs ``exact``."""
    dtype = tensor.dtype if not tensor.is_complex() else tensor.real.dtype
    if not dtype.is_floating_point:
        dtype = torch.float64
    limits = _RANGE.get(torch.float32 if dtype.itemsize < 4 else dtype)
    if limits is None:
        return None
    n = tensor.numel()
    low, high, total, squares, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for chunk in _real_chunks(tensor):
        # A chunk stays in the CPU's caches, so several reads are cheap.
        least, most = _bounds(chunk)
        # A NaN or Inf among the values shows in the bounds and fails this comparison too.
        if not max(-least, most) < limits[1]:
            return None
        low, high = min(low, least), max(high, most)
        if least <= 0.0 <= most:
            zeros += _zeros(chunk)
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
        variance = _shifted_variance(tensor, mean)
    # Rounding may move `mean` out of the bounds; for a constant tensor it must equal them.
    mean = min(max(mean, low), high)
    norm = math.sqrt(squares) * math.sqrt(copies)
    return [norm, mean, math.sqrt(max(variance, 0.0)), low, high, float(zeros * copies), 0.0, 0.0]


#: A chunk of elements; a small one is a NumPy array, whose functions have less overhead.
_Chunk = torch.Tensor | np.ndarray


def _real_chunks(tensor: torch.Tensor) -> Iterator[_Chunk]:
    """Yield real chunks: moduli of complex numbers, integers in float64, others in float32 or
    better."""
    for chunk in _flat_chunks(tensor, _CHUNK):
        if chunk.is_complex():
            chunk = chunk.abs()
        elif not chunk.is_floating_point():
            chunk = chunk.double()
        elif chunk.dtype.itemsize < 4:
            # In half precision the mean itself would be rounded.
            chunk = chunk.float()
        yield _array(chunk) if chunk.numel() <= _FEW else chunk


def _array(chunk: torch.Tensor) -> _Chunk:
    """Return the same memory as a NumPy array; the chunk itself if it has none (``torch.func``)."""
    try:
        return chunk.numpy()
    except RuntimeError:
        return chunk


def _bounds(chunk: _Chunk) -> tuple[float, float]:
    """Return the smallest and the largest element; NaN if there is one."""
    if isinstance(chunk, np.ndarray):
        return float(chunk.min()), float(chunk.max())
    bounds = torch.aminmax(chunk)
    return bounds.min.item(), bounds.max.item()


def _sums(chunk: _Chunk) -> tuple[float, float]:
    """Return Σx and Σx²: within a block in the elements' precision, across blocks in float64.

    PyTorch's sum is pairwise, so one call is exact enough; its norm adds sequentially, so it needs
    blocks.
    """
    total = chunk.sum().item()
    full = len(chunk) - len(chunk) % BLOCK
    squares = 0.0
    if isinstance(chunk, np.ndarray):
        if full:
            rows = chunk[:full].reshape(-1, BLOCK)
            squares = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
        return total, squares + float(np.dot(chunk[full:], chunk[full:]))
    if full:
        blocks = torch.linalg.vector_norm(chunk[:full].view(-1, BLOCK), dim=1).double()
        squares = torch.dot(blocks, blocks).item()
    if full < len(chunk):
        squares += torch.dot(chunk[full:], chunk[full:]).item()
    return total, squares


def _zeros(chunk: _Chunk) -> int:
    """Return the number of zero elements.

    ``count_nonzero`` takes a branch for each element, and PyTorch's comparison is slower than its
    conversion to bool. Eight of its bytes are added as one word: the sum of up to 255 such words
    carries nothing from byte to byte.
    """
    if isinstance(chunk, np.ndarray):
        return int(np.count_nonzero(chunk == 0))
    n = chunk.numel()
    if n < _WORDS * 8:
        return n - int(chunk.bool().sum())
    full = n - n % (_WORDS * 8)
    truths = chunk.bool()
    words = truths[:full].view(torch.int64).view(-1, _WORDS).sum(1)
    count = int(words.view(torch.uint8).sum())
    return n - count - (int(truths[full:].sum()) if full < n else 0)


def _shifted_variance(tensor: torch.Tensor, mean: float) -> float:
    """Return the variance around a pilot mean, because Σx² − (Σx)²/n cancels if the mean is much
    larger than the spread."""
    total = squares = 0.0
    for chunk in _real_chunks(tensor):
        part_total, part_squares = _sums(chunk - mean)
        total += part_total
        squares += part_squares
    shift = total / tensor.numel()
    return squares / tensor.numel() - shift * shift


def exact(tensor: torch.Tensor, copies: int) -> torch.Tensor:
    """Compute the eight numbers in float64 over the finite elements, scaled by the largest
    magnitude.

    It reads no value back, so it also works on accelerators.
    """
    zero = torch.zeros((), dtype=torch.float64, device=tensor.device)
    infinity = zero + math.inf
    low, high, zeros, nan, inf = infinity, -infinity, zero, zero, zero
    for values, finite, isnan in _double_chunks(tensor):
        low = torch.minimum(low, torch.where(finite, values, infinity).min())
        high = torch.maximum(high, torch.where(finite, values, -infinity).max())
        zeros = zeros + (values == 0).sum()
        nan = nan + isnan.sum()
        inf = inf + (~(finite | isnan)).sum()
    n = tensor.numel() - nan - inf
    scale = torch.maximum(low.abs(), high.abs())
    scale = torch.where((scale == 0) | ~torch.isfinite(scale), zero + 1.0, scale)
    total = squares = deviation = zero
    for values, finite, _ in _double_chunks(tensor):
        scaled = torch.where(finite, values / scale, zero)
        total = total + scaled.sum()
        squares = squares + scaled.square().sum()
    mean = total / n
    for values, finite, _ in _double_chunks(tensor):
        deviation = deviation + torch.where(finite, values / scale - mean, zero).square().sum()
    norm = squares.sqrt() * scale * math.sqrt(copies)
    std = (deviation / n).sqrt() * scale
    counts = [count * copies for count in (zeros, nan, inf)]
    return torch.stack([norm, mean * scale, std, low, high, *counts])


def _double_chunks(
    tensor: torch.Tensor,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield values in float64 (the modulus of complex ones), and masks of the finite and of the NaN
    ones."""
    for chunk in _flat_chunks(tensor, _CHUNK if tensor.is_cpu else _CHUNK << 4):
        if chunk.is_complex():
            wide = chunk.to(torch.complex128)
            yield wide.abs(), torch.isfinite(wide), torch.isnan(wide)
        else:
            values = chunk.double()
            yield values, torch.isfinite(values), torch.isnan(values)


def flat_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements [n] of a nested tensor."""
    parts = [part.reshape(-1) for part in tensor.unbind()]
    empty = torch.zeros(0, dtype=tensor.dtype, device=tensor.device)
    return torch.cat(parts) if parts else empty


def gradient_norms(
    gradients: Sequence[torch.Tensor], measured: Mapping[int, TensorStats] | None = None
) -> list[float]:
    """Return the L2 norm of each gradient, or of its shard; NaN or Inf if an element is.

    Without the compiled library, sums of squares are added up over blocks in float32 and over the
    blocks in float64, as ``capture/reductions.py`` does: one float32 sum over millions of elements
    errs by up to 1e-3. Squares outside float32's range are taken in float64.

    Args:
        gradients: the gradients.
        measured: by ``id``, statistics of their present values. A norm is taken from these if it
            equals the result of this function.
    """
    known = measured if measured and one_pass.is_compiled() else {}
    statistics = [known.get(id(gradient)) for gradient in gradients]
    # Backward may have built a graph. `no_grad` would take longer than a norm.
    gradients = [g.detach() if g.requires_grad else g for g in map(local, gradients)]
    norms = [0.0] * len(gradients)
    small, others, exact = [], [], set()
    for number, gradient in enumerate(gradients):
        plain = _is_plain(gradient)
        if plain and gradient.numel() <= BLOCK:
            small.append(number)
        elif plain and type(gradient) is torch.Tensor and (stats := statistics[number]) is not None:
            own = math.inf if stats.inf else stats.norm
            norms[number] = math.nan if stats.nan or own is None else own
            exact.add(number)
        elif (numbers := one_pass.numbers(gradient)) is not None:
            *_, nan, inf = numbers
            norms[number] = math.nan if nan else math.inf if inf else numbers[0]
            exact.add(number)
        elif not plain:
            if gradient.is_nested:
                gradients[number] = flat_elements(gradient)
            others.append(number)
        else:
            # On the CPU numbers can be read at once, so Python adds up the blocks.
            norms[number] = math.hypot(*_block_norms(gradient.view(-1)).tolist())
    if small:
        # One call for all, because a call takes longer than computing the norm of such a gradient.
        found = torch._foreach_norm([gradients[n] for n in small])
        for number, norm in zip(small, found, strict=True):
            norms[number] = norm.item()
    for device in {gradients[n].device for n in others}:
        there = [n for n in others if gradients[n].device == device]
        together = [n for n in there if _adds_in_double(gradients[n])]
        # One call for all: a call takes longer than the GPU takes for the norm.
        all_norms = dict(zip(together, _in_double([gradients[n] for n in together]), strict=True))
        exact |= all_norms.keys()
        for n in there:
            if n not in all_norms:
                all_norms[n] = _norm(gradients[n])
        read = torch.stack([all_norms[n] for n in there]).tolist()
        for number, norm in zip(there, read, strict=True):
            norms[number] = norm
    return [
        norm if 1e-15 < norm < 1e18 or number in exact else _exact(gradients[number], norm)
        for number, norm in enumerate(norms)
    ]


def _is_plain(gradient: torch.Tensor) -> bool:
    """Return True for a common CPU gradient: float32, strided, contiguous."""
    return (
        gradient.dtype == torch.float32
        and gradient.layout == torch.strided
        and gradient.is_cpu
        and not gradient.is_nested
        and gradient.is_contiguous()
    )


def _adds_in_double(gradient: torch.Tensor) -> bool:
    """Return True for a gradient whose squares a GPU adds up in float64, all in its range."""
    return (
        gradient.is_cuda
        and gradient.layout == torch.strided
        and gradient.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def _in_double(gradients: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the norm of each as a 0-dim float64 tensor."""
    return torch._foreach_norm(gradients, 2, torch.float64) if gradients else ()


def _block_norms(flat: torch.Tensor) -> torch.Tensor:
    """Return the norm of each block.

    As rows of a matrix this takes half the time of a dot product per block, or of one call over all
    blocks.
    """
    count = flat.numel()
    rest = count % BLOCK
    full = flat if not rest else flat[: count - rest]
    rows: torch.Tensor = torch.linalg.vector_norm(full.view(-1, BLOCK), dim=1)
    if not rest:
        return rows
    return torch.cat([rows, torch.linalg.vector_norm(flat[count - rest :]).view(1)])


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    """Return the norm as a 0-dim float64 tensor on the gradient's device."""
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce()._values()
    elif gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    if gradient.dtype in (torch.float16, torch.bfloat16):
        gradient = gradient.float()
    # In memory order: of a convolution's weights the channels may come last.
    ordered, copies = in_memory_order(gradient)
    flat = ordered.reshape(-1)
    blocks = flat if flat.numel() <= BLOCK else _block_norms(flat)
    double = torch.float64 if blocks is not flat else None
    norm: torch.Tensor = torch.linalg.vector_norm(blocks, dtype=double).double()
    return norm if copies == 1 else norm * math.sqrt(copies)


def _exact(gradient: torch.Tensor, norm: float) -> float:
    """Recompute the norm if squares overflow or underflow in float32."""
    if math.isnan(norm) or gradient.is_sparse or gradient.is_complex():
        return norm
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64).item())
