"""A tensor to a short text that is the same where all of its bits are, in whatever process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from gradscope.capture.shards import local

#: A tensor's bits are added up in so many integers, which wrap around: exact in any order.
_WIDTH = 1024


@torch.no_grad()
def fingerprints(tensors: Sequence[torch.Tensor]) -> list[str]:
    """16 hexadecimal digits for each tensor, of its shape, its dtype and all of its bits.

    Sums are taken where the tensor is, and read back together: a pass over the memory, and four
    kilobytes for each. Equal bits give equal texts on every device; others give others but for a
    chance of about 2⁻³² for each pair, or where full rows of 1024 integers change places.
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
    """32-bit integers, one for each column of the tensor's bits laid out in rows of 1024."""
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
