"""Compares tensors: their difference in float64, and a text that is equal if all bits are equal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradscope.capture.shards import local

#: Elements of a CPU tensor that are converted to float64 at a time, to stay in the cache.
_CHUNK = 1 << 18
#: A sum of squares above this has lost nothing to underflow in float64.
_SAFE = 1e-280


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of ``b`` from ``a``.

    Attributes:
        error: ‖b − a‖ / ‖a‖, L2; infinite if only ``a`` is all zeros, or if only one has a NaN or
            Inf at some element.
        cosine: the cosine between the two; None if one is all zeros.
        largest: the largest of the elements' absolute differences.
        scale: s, so that (1 + s)·a comes closest to ``b``. Rounding goes both ways, so it leaves s
            near zero even if the error is large.
    """

    error: float
    cosine: float | None
    largest: float
    scale: float = 0.0


def difference(a: torch.Tensor, b: torch.Tensor) -> Difference:
    """Compare two tensors of one shape, whatever their dtypes and devices."""
    dtype = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = (t.detach().to(b.device).reshape(-1) for t in (a, b))
    return _quick(a, b, dtype) or _exact(a.to(dtype), b.to(dtype))


def _quick(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> Difference | None:
    """Compare by sums of products; None if these are NaN or Inf, or too small to be exact."""
    sums = torch.zeros(4, dtype=torch.float64, device=b.device)
    largest = torch.zeros((), dtype=torch.float64, device=b.device)
    size = _CHUNK if b.device.type == "cpu" else max(b.numel(), 1)
    for x, y in zip(torch.split(a, size), torch.split(b, size), strict=True):
        x, y = x.to(dtype), y.to(dtype)
        diff = y - x
        pairs = ((x, x), (y, y), (x, diff), (diff, diff))
        sums += torch.stack([torch.vdot(one, other).real for one, other in pairs])
        if diff.numel():
            largest = torch.maximum(largest, diff.abs().max())
    aa, bb, along, diffs = sums.tolist()
    if not math.isfinite(aa + bb + diffs) or min(aa, bb) < _SAFE:
        return None
    farthest = float(largest)
    if farthest == 0.0:
        return Difference(0.0, 1.0, 0.0)
    if diffs < _SAFE:
        return None
    norm_a, norm_b = math.sqrt(aa), math.sqrt(bb)
    # A form of the law of cosines that stays exact for nearly equal tensors.
    cosine = 1.0 - (diffs - (norm_b - norm_a) ** 2) / (2.0 * norm_a * norm_b)
    error = math.sqrt(diffs) / norm_a
    return Difference(error, max(-1.0, min(1.0, cosine)), farthest, along / aa)


def _exact(a: torch.Tensor, b: torch.Tensor) -> Difference:
    """Compare any numbers exactly, which takes several times as long."""
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not bool(finite.all()):
        # Masks contain infinities on purpose: an infinity at the same element of both is no
        # difference.
        same = (a == b) | (a.isnan() & b.isnan()) | finite
        if not bool(same.all()):
            return Difference(math.inf, None, math.inf)
        a, b = a[finite], b[finite]
    if not a.numel():
        return Difference(0.0, None, 0.0)
    diff = (b - a).abs()
    largest = float(diff.max())
    if largest == 0.0:
        return Difference(0.0, 1.0 if bool(a.any()) else None, 0.0)
    # Scale first, so that squares of small gradients do not underflow.
    of_a, of_b = float(a.abs().max()), float(b.abs().max())
    norm = float(torch.linalg.vector_norm(diff / largest)) * largest
    if of_a == 0.0 or of_b == 0.0:
        return Difference(1.0 if of_a else math.inf, None, largest)
    along = float(torch.sum(a.conj() / of_a * ((b - a) / largest)).real)
    a, b = a / of_a, b / of_b
    norm_a, norm_b = (float(torch.linalg.vector_norm(t)) for t in (a, b))
    cosine = float(torch.sum(a.conj() * b).real) / (norm_a * norm_b)
    scale = along / norm_a**2 * (largest / of_a)
    return Difference(norm / (norm_a * of_a), max(-1.0, min(1.0, cosine)), largest, scale)


#: Number of integers that sum up a tensor's bits. They wrap around, so the order does not matter.
_WIDTH = 1024


@torch.no_grad()
def fingerprints(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return 16 hexadecimal digits for each tensor, from its shape, its dtype and all of its bits.

    The sums are computed on the tensor's device and read back together: one pass over the memory,
    and four kilobytes for each tensor. Equal bits give equal texts on every device. Different bits
    give different texts, except with a chance of about 2⁻³² per pair, and except for a permutation
    of full rows of 1024 integers.
    """
    sums = [_sums(local(tensor).detach()) for tensor in tensors]
    read: list[torch.Tensor | None] = [None] * len(sums)
    for device in {one.device for one in sums}:
        there = [n for n, one in enumerate(sums) if one.device == device]
        together = torch.cat([sums[n] for n in there]).cpu()
        parts = torch.split(together, [len(sums[n]) for n in there])
        for n, part in zip(there, parts, strict=True):
            read[n] = part
    return [_text(tensor, part) for tensor, part in zip(tensors, read, strict=True)]


def combined(texts: Sequence[str]) -> str:
    """Return one fingerprint for all texts, in their order."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return column sums of the tensor's bits, as 32-bit integers in rows of 1024."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 4 or len(flat) % 4:
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % 4))
    words = flat.view(torch.int32)
    full = len(words) - len(words) % _WIDTH
    sums = words[full:].clone()
    if full:
        rows = words[:full].view(-1, _WIDTH).sum(0, dtype=torch.int32)
        rows[: len(sums)] += sums
        return rows
    return sums


def _text(tensor: torch.Tensor, sums: torch.Tensor | None) -> str:
    assert sums is not None
    head = f"{tuple(tensor.shape)} {tensor.dtype} ".encode()
    return hashlib.blake2b(head + sums.numpy().tobytes(), digest_size=8).hexdigest()
