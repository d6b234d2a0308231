"""Reduces each sample of a batch to a row of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: Primes that spread the places and tokens of a sample.
_PLACE, _TOKEN, _MIX = 1_000_003, 8_191, 2_654_435_761


def hashes(batch: torch.Tensor) -> Iterator[int]:
    """Yield a hash of each sample; samples are along the first dimension."""
    rows = batch.detach().cpu().resolve_conj().reshape(len(batch), -1).contiguous()
    for row in rows.view(torch.uint8).numpy():
        yield hash(row.tobytes())


def sketch(batch: torch.Tensor, width: int) -> torch.Tensor:
    """Return a count sketch of each sample, with at most ``width`` numbers.

    Each element is added to one of the columns with a random sign, so the expected inner product of
    two rows equals that of the samples (Charikar, Chen and Farach-Colton, 2002). Integers count as
    tokens: the inner product is the number of positions with the same token.

    Args:
        batch: samples × …
        width: the most columns.

    Returns:
        Samples × columns, float32, on the CPU.
    """
    rows = batch.detach()
    rows = torch.view_as_real(rows) if rows.is_complex() else rows
    rows = rows.reshape(len(rows), -1).cpu()
    made = torch.zeros(len(rows), width, device="cpu")
    places = torch.arange(rows.shape[1], device="cpu")
    if rows.is_floating_point() or rows.dtype == torch.uint8:
        rows = rows.float()
        if rows.shape[1] <= width:
            return rows
        columns, signs = _spread(places, width)
        return made.index_add_(1, columns, rows * signs)
    columns, signs = _spread(places + _TOKEN * rows.long(), width)
    return made.scatter_add_(1, columns, signs)


def _spread(keys: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The column and the sign of each key; no generator of the script's is used."""
    mixed = (keys * _PLACE + 12_345) * _MIX
    mixed = (mixed ^ (mixed >> 29)) * _PLACE
    return (mixed >> 20) % width, ((mixed >> 50) & 1) * 2.0 - 1.0
