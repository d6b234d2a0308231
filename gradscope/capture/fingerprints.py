"""Makes a short text of a tensor that is equal if all bits are equal, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from gradscope.capture.shards import local

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
