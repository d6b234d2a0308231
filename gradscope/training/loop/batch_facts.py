"""Finds equal samples among the inputs and outputs of models, in sampled steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch

from gradscope.capture.shards import PLAIN
from gradscope.nesting import find
from gradscope.records.loop_figures import LoopBatches
from gradscope.training.loop.script_lines import script_line

#: A batch of fewer samples says little.
_FEWEST = 4


class _Facts:
    """Facts on one model."""

    def __init__(self) -> None:
        self.batches = self.alike = self.outputs = self.constant = self.twins = 0
        self.size = 0.0
        self.location: str | None = None
        self.open = 0  # how many samples the call that goes on was given, if they differ


class BatchFacts:
    """Reads the arguments and the results of the models' calls."""

    def __init__(self) -> None:
        self._of: dict[int, _Facts] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of a model's call with gradients, in a sampled step."""
        facts = self._of.setdefault(model, _Facts())
        facts.open = 0
        given = [one for _, one in find((args, kwargs), torch.Tensor) if one.dim()]
        count = given[0].shape[0] if given else 0
        # A tensor with another first axis, as a graph's edges, may distinguish the samples.
        if count < _FEWEST or not all(_plain(one) and one.shape[0] == count for one in given):
            return
        if facts.location is None:
            facts.location = str(script_line() or "") or None
        alike = all(_same_rows(one) for one in given)
        facts.batches += 1
        facts.alike += alike
        numbers = [one.detach() for one in given if one.is_floating_point()]
        facts.size = _rms(numbers[0]) if numbers else 0.0
        facts.twins += _has_twins(numbers)
        facts.open = 0 if alike else count

    def returned(self, model: int, output: object) -> None:
        """Note a model's output."""
        facts = self._of.get(model)
        if facts is None or not facts.open:
            return
        count, facts.open = facts.open, 0
        given = next(
            (one for _, one in find(output, torch.Tensor) if one.is_floating_point()), None
        )
        if given is None or not given.dim() or given.shape[0] != count or not _plain(given):
            return
        facts.outputs += 1
        facts.constant = facts.constant + 1 if _same_rows(given) else 0

    def records(self) -> Iterator[LoopBatches]:
        """Yield the record of each model."""
        for model, one in self._of.items():
            if one.batches:
                yield LoopBatches(
                    model=model, batches=one.batches, alike=one.alike, outputs=one.outputs,
                    constant=one.constant, location=one.location, size=one.size, twins=one.twins,
                )  # fmt: skip


def _plain(tensor: torch.Tensor) -> bool:
    there = not tensor.is_meta and tensor.layout == torch.strided and not tensor.is_nested
    return there and type(tensor) in PLAIN


def _rms(tensor: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor.float()))
    size = norm / max(1, tensor.numel()) ** 0.5
    return size if math.isfinite(size) else 0.0


def _has_twins(tensors: Sequence[torch.Tensor]) -> bool:
    """Return True if two tensors in different memory have the same numbers."""
    return any(
        one.shape == other.shape
        and one.data_ptr() != other.data_ptr()
        and not _same_rows(one)
        and torch.equal(one, other)
        for one, other in combinations(tensors, 2)
    )


def _same_rows(tensor: torch.Tensor) -> bool:
    """Return True if all samples are equal; the first two nearly always decide."""
    rows = tensor.detach()
    if not tensor.numel() or not torch.equal(rows[0], rows[1]):
        return False
    return bool((rows == rows[:1]).all())
