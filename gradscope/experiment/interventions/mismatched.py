"""Pairs each input with the target of another sample of its batch."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

from torch import nn

from gradscope.experiment.interventions._models import (
    given_tensors,
    is_data,
    on_calls,
    with_tensors,
)
from gradscope.experiment.interventions._samples import hashes
from gradscope.leaks.meaning import LABELS, role_named
from gradscope.training.replicas import batch_comes_first


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Shift the inputs of the outermost calls along the batch, but not labels.

    The shift changes at each call: if targets follow a pattern, such as 0, 1, 0, 1, a model could
    learn them from a fixed neighbour's inputs. ``notes`` counts the "samples" and how many of them
    are "distinct".
    """
    seen: set[int] = set()
    notes.update(samples=0, distinct=0)
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
        seen.update(hashes(inputs[0].tensor.transpose(0, dim)))
        notes["samples"] += samples
        notes["distinct"] = len(seen)
        shift = shifts.randrange(1, samples)
        moved = (one for one in inputs if one.tensor.shape[dim] == samples)
        new = {one.place: one.tensor.roll(shift, dim) for one in moved}
        return with_tensors(args, kwargs, new)

    on_calls(patches, notes, change)
