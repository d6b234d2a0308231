"""Makes batches that differ in one place: one sample in many rows, with a change in each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradscope.leaks.meaning import HIDDEN, MASK, TOKENS, Given, Meaning

Tensors = dict[str, torch.Tensor]

#: Number of positions to check one by one; of more, only so many.
FULL, SOME = 40, 20


@dataclass
class Rows:
    """Many rows of one sample.

    Attributes:
        meaning: the roles of the batch.
        count: the number of rows.
        base: the tensors of the rows.
        tiled: True if every row is the same sample; otherwise they are the batch's samples.
        vocabulary: the number of tokens of each source.
        padding: the padding token.
    """

    meaning: Meaning
    count: int
    base: Tensors
    tiled: bool
    vocabulary: dict[str, int]
    padding: float | None = None
    _coins: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(20260901))

    @property
    def control(self) -> int:
        """The unchanged row, if all others change."""
        return self.count // 2

    def other(self, one: Given, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that differs from this one in every element."""
        if tensor.is_floating_point() or tensor.is_complex():
            spread = float(tensor.float().std()) if tensor.numel() > 1 else 1.0
            spread = spread if spread > 0 else 1.0
            shift = torch.randn(tensor.shape, generator=self._coins)
            shift = torch.where(shift.abs() < 0.05, torch.full_like(shift, 0.7), shift)
            return tensor + (2 * spread * shift).to(tensor)
        if tensor.dtype == torch.bool:
            return ~tensor
        # From 2 up: 0 and 1 often mark padding and the beginning.
        most = self.vocabulary.get(one.path, int(tensor.max()) + 1 if tensor.numel() else 1)
        choice = [n for n in range(min(most, 50_000)) if n != self.padding]
        upper = [n for n in choice if n > 1]
        choice = upper if len(upper) >= 2 else choice
        if len(choice) < 2:
            return tensor.clone()
        known = torch.tensor(choice)
        place = torch.searchsorted(known, tensor.cpu().reshape(-1).clamp(0, most - 1))
        step = torch.randint(1, len(choice), place.shape, generator=self._coins)
        changed = known[(place + step) % len(choice)]
        same = changed == tensor.cpu().reshape(-1)
        changed = torch.where(same, known[(place + step + 1) % len(choice)], changed)
        return changed.reshape(tensor.shape).to(tensor)

    def other_label(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return labels that differ in every element; classes are replaced by other existing
        classes, if possible."""
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            return self.other(Given("", "", tensor, "labels"), tensor)
        least, most = int(tensor.min()), int(tensor.max())
        if most == least:
            return tensor + 1 if most < 1 else tensor - 1
        span = most - least + 1
        step = torch.randint(1, span, tensor.shape, generator=self._coins).to(tensor)
        return (tensor - least + step) % span + least

    def changed(self, one: Given, where: torch.Tensor, base: Tensors | None = None) -> torch.Tensor:
        """Return a source with other values at some (row, position), or at some rows.

        Args:
            one: the source.
            where: bool [rows, positions], or [rows].
            base: the tensors to change; None: those of the rows.
        """
        tensor = (self.base if base is None else base)[one.path]
        return torch.where(spread_over(one, where, tensor), self.other(one, tensor), tensor)


def spread_over(one: Given, where: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Expand a choice of (row, position), or of rows, to a mask over the full tensor."""
    shape = [1] * tensor.dim()
    where = where.to(tensor.device)
    if where.dim() == 1:
        assert one.batch is not None
        shape[one.batch] = where.numel()
        return where.reshape(shape).expand(tensor.shape)
    assert one.time is not None
    if one.batch is None:
        shape[one.time] = where.shape[1]
        return where[0].reshape(shape).expand(tensor.shape)
    shape[one.batch], shape[one.time] = where.shape
    ordered = where if one.batch < one.time else where.T
    return ordered.reshape(shape).expand(tensor.shape)


def tile(meaning: Meaning, count: int, sample: int = 0) -> Tensors:
    """Return ``count`` rows of one sample, of all tensors with a batch axis."""
    found = {}
    for one in meaning.given:
        tensor = one.tensor
        if one.batch is not None:
            index = torch.full((count,), sample, device=tensor.device)
            tensor = tensor.index_select(one.batch, index)
        found[one.path] = tensor
    return found


def unmasked(meaning: Meaning, tensors: Tensors) -> Tensors:
    """Return the tensors with masks that mask nothing."""
    return {
        **tensors,
        **{m.path: torch.full_like(tensors[m.path], m.keep) for m in meaning.of(MASK, HIDDEN)},
    }


def vocabularies(model: nn.Module, meaning: Meaning) -> dict[str, int]:
    """Return the number of tokens of each source: from the config, or the embeddings."""
    known = getattr(getattr(model, "config", None), "vocab_size", None)
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    found = {}
    for one in meaning.of(TOKENS):
        least = int(one.tensor.max()) + 1 if one.tensor.numel() else 1
        fitting = [size for size in sizes if size >= least]
        if isinstance(known, int) and known >= least:
            found[one.path] = known
        elif fitting and len(meaning.of(TOKENS)) == 1:
            found[one.path] = fitting[0] if len(set(fitting)) == 1 else min(fitting)
        else:
            found[one.path] = max(least, 2) if not fitting else min(fitting)
    return found


def cuts(positions: int) -> list[int]:
    """Return the cuts, positions after which the future begins: all, or the ends and some
    between."""
    last = positions - 1
    if positions <= FULL:
        return list(range(last))
    ends = [0, 1, 2, 3, 6, last - 1, last - 2, last - 4]
    step = last / (SOME - len(ends) + 1)
    between = [round(step * n) + n % 3 for n in range(1, SOME - len(ends) + 1)]
    return sorted({min(max(0, n), last - 1) for n in (*ends, *between)})


def future(count: int, positions: int, at: Sequence[int | None]) -> torch.Tensor:
    """Return for each row the positions after its cut, as bool [rows, positions]; None without
    cuts."""
    where = torch.zeros(count, positions, dtype=torch.bool)
    for row, position in enumerate(at[:count]):
        if position is not None:
            where[row, position + 1 :] = True
    return where
