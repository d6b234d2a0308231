"""Whether every call of the models is given the same batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradscope.capture.fingerprints import fingerprints
from gradscope.nesting import find


class Batches:
    """Compares what each call is given with the first, until the first that differs.

    Attributes:
        same: in how many calls from the first on it was the same numbers; 0 once it was not.
        differ: whether one was given others.
        same_tensor: whether it was the same memory each time, and no small part of a larger
            tensor: a script that trains on all of its data at once does so.
    """

    def __init__(self) -> None:
        self.same = 0
        self.same_tensor = True
        self.differ = False
        self._first: dict[int, tuple[str, ...]] = {}  # by model
        self._tensors: dict[int, object] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A model is called on this, with gradients enabled."""
        if self.differ:
            return
        given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
        # What hangs on a graph is another model's output: it changes as that one trains.
        if not given or any(tensor.grad_fn is not None for tensor in given):
            return
        digest = tuple(fingerprints(given))
        first = self._first.setdefault(model, digest)
        if first != digest:
            self.differ, self.same = True, 0
            self._first.clear()
            self._tensors.clear()
            return
        base = given[0]._base
        part = base is not None and base.numel() > 2 * given[0].numel()
        place = _place(given[0])
        self.same_tensor = (
            self.same_tensor and self._tensors.setdefault(model, place) == place and not part
        )
        self.same += 1


def _place(tensor: torch.Tensor) -> object:
    """The same for two tensors that are the same part of the same memory."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    return (tensor.data_ptr(), tensor.stride()) if plain else id(tensor)
