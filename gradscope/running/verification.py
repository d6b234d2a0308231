"""The proof of harmlessness: two plain steps and one observed, all seeded alike, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradscope.records.run import Verification
from gradscope.running.state import same_bits
from gradscope.running.step import Step, repeated

Gradients = list[torch.Tensor | None]


def plain_gradients(step: Step) -> Gradients:
    """The results of one run of a step without an observer; all state is then restored."""
    with repeated(step, weights=True) as plain:
        plain.compute_gradients()
        return gradients(plain)


def gradients(step: Step) -> Gradients:
    """``.grad`` of every parameter and every input."""
    tensors = [*step.workload.model.parameters(), *step.inputs.values()]
    return [t.grad for t in tensors if t.is_leaf]


class Verifier:
    """Holds the gradients of a plain step and what a second plain step differed by."""

    def __init__(self, plain_step: Callable[[], Gradients]) -> None:
        self._first = plain_step()
        self._repeatable = _difference(self._first, plain_step()) == 0.0

    def compare(self, observed: Gradients) -> Verification:
        """The verdict on the observed step."""
        difference = _difference(self._first, observed)
        return Verification(self._repeatable, difference == 0.0, difference)


def _difference(left: Gradients, right: Gradients) -> float | None:
    """The largest absolute difference; 0.0 only if every bit agrees, None if it has no size."""
    largest = 0.0
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            if one is not other:
                return None
            continue
        one, other = (t.to_dense() if t.layout != torch.strided else t for t in (one, other))
        if one.shape != other.shape or one.dtype != other.dtype:
            return None
        if same_bits(one, other):
            continue
        wide = torch.complex128 if one.is_complex() else torch.float64
        difference = (one.to(wide) - other.to(wide)).abs()
        if not bool(torch.isfinite(difference).all()):
            return None
        largest = max(largest, difference.max().item(), torch.finfo(torch.float64).tiny)
    return largest
