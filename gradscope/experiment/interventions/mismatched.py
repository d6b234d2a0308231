"""Pairs each input with the target of another sample of its batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gradscope.experiment.interventions._models import (
    given_tensors,
    is_data,
    on_calls,
    with_tensors,
)
from gradscope.experiment.interventions._relation import hashes
from gradscope.leaks.meaning import LABELS, role_named
from gradscope.training.replicas import batch_comes_first

#: Most memory for the wrong inputs of samples that may come again.
_MOST_BYTES = 1 << 28


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Shift the inputs of the outermost calls along the batch, but not labels.

    The shift changes at each call: if targets follow a pattern, such as 0, 1, 0, 1, a model could
    learn them from a fixed neighbour's inputs. A sample that comes again has the same wrong inputs
    as before, so that the model can memorise wrong pairs as easily as right ones. ``notes`` counts
    the "samples" and how many of them are "distinct"; "paired" is False once the memory for the
    wrong inputs is full.
    """
    seen = _Seen()
    notes.update(samples=0, distinct=0, paired=True)
    shifts = random.Random(0)  # the script's own numbers are not touched

    def change(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dim = 0 if batch_comes_first(module) else 1
        inputs = [
            one
            for one in given_tensors(module, args, kwargs)
            if is_data(one.tensor)
            and one.tensor.dim() > dim
            and role_named(one.name, one.tensor) != LABELS
        ]
        samples = inputs[0].tensor.shape[dim] if inputs else 0
        if samples < 2:
            return None
        shift = shifts.randrange(1, samples)
        alike = [one for one in inputs if one.tensor.shape[dim] == samples]
        rows = [one.tensor.transpose(0, dim) for one in alike]
        moved = seen.paired(rows, [row.roll(shift, 0) for row in rows])
        notes["samples"] += samples
        notes.update(distinct=len(seen.inputs), paired=seen.bytes <= _MOST_BYTES)
        back = [row.transpose(0, dim).contiguous() if dim else row for row in moved]
        new = {one.place: row for one, row in zip(alike, back, strict=True)}
        return with_tensors(args, kwargs, new)

    on_calls(patches, notes, change)


class _Seen:
    """The wrong inputs of each sample that a call has had.

    Attributes:
        inputs: a sample's wrong inputs by its hash; None if the memory was full.
        bytes: the size of all of them.
    """

    def __init__(self) -> None:
        self.inputs: dict[int, list[torch.Tensor] | None] = {}
        self.bytes = 0

    def paired(
        self, rows: Sequence[torch.Tensor], moved: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Return wrong inputs: those that a sample had before, or ``moved`` if it is new.

        Args:
            rows: the inputs, each samples × ….
            moved: the same inputs at other samples; changed in place.
        """
        for place, key in enumerate(zip(*map(hashes, rows), strict=True)):
            known = self.inputs.get(hash(key))
            if known is not None:
                for row, wrong in zip(moved, known, strict=False):
                    if row[place].shape == wrong.shape and row.dtype == wrong.dtype:
                        row[place] = wrong
            elif hash(key) not in self.inputs:
                self.bytes += sum(row[place].nbytes for row in moved)
                fits = self.bytes <= _MOST_BYTES
                self.inputs[hash(key)] = [row[place].clone() for row in moved] if fits else None
        return moved
