"""Computes the loss of the best constant answer, which a network must beat."""

from __future__ import annotations

import math

import torch

#: Counts of more classes, or sums of more numbers in a sample, are not kept.
_CLASSES, _NUMBERS = 65536, 4096


class ConstantAnswer:
    """Adds up the targets of batches: how often each class came, or the sums of numbers."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None
        self._sums: list[torch.Tensor] | None = None
        self._count = 0
        self._fits = True

    def add_classes(self, targets: torch.Tensor, classes: int) -> None:
        """Add the class indices of one batch, none of them ignored."""
        if not 1 < classes <= _CLASSES or targets.is_floating_point():
            self._fits = False
            return
        counts = torch.bincount(targets.reshape(-1), minlength=classes).cpu()
        if self._counts is not None and len(self._counts) == len(counts):
            counts = counts + self._counts
        self._counts = counts

    def add_numbers(self, targets: torch.Tensor) -> None:
        """Add the targets of a regression, or probabilities, with samples along the first axis."""
        samples = len(targets) if targets.dim() else 1
        numbers = targets.detach().double().reshape(samples, -1)
        if numbers.shape[1] > _NUMBERS:
            self._fits = False
            return
        sums = [numbers.sum(0).cpu(), numbers.square().sum(0).cpu()]
        if self._sums is not None:
            if self._sums[0].shape != sums[0].shape:
                self._fits = False
                return
            sums = [one + before for one, before in zip(sums, self._sums, strict=True)]
        self._sums, self._count = sums, self._count + samples

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of targets of each class."""
        return () if self._counts is None else tuple(self._counts.tolist())

    @property
    def entropy(self) -> float | None:
        """Return the entropy of the classes' frequencies in nats; None if unknown."""
        if self._counts is None or not self._fits:
            return None
        shares = self._counts.double() / self._counts.sum()
        return -math.fsum(share * math.log(share) for share in shares.tolist() if share)

    @property
    def binary_entropy(self) -> float | None:
        """Return the binary entropy, averaged over the outputs."""
        if self._sums is None or not self._fits:
            return None
        means = [min(max(one / self._count, 0.0), 1.0) for one in self._sums[0].tolist()]
        terms = [p * math.log(p) for mean in means for p in (mean, 1 - mean) if p > 0]
        return -math.fsum(terms) / max(1, len(means))

    @property
    def variance(self) -> float | None:
        """Return the variance over samples, averaged over the outputs."""
        if self._sums is None or not self._fits:
            return None
        means = self._sums[0] / self._count
        return float((self._sums[1] / self._count - means.square()).clamp(min=0).mean())

    @property
    def rms(self) -> float | None:
        """Return the root mean square of all numbers."""
        if self._sums is None or not self._fits:
            return None
        return math.sqrt(float((self._sums[1] / self._count).mean()))
