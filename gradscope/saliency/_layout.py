"""The memory layout that a pass with a graph runs faster in.

There are too few of these to try both layouts, as ``_batching`` does for hundreds of passes
without a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gradscope.saliency._batching import is_out_of_memory

Result = TypeVar("Result")

#: From this many pictures on, convolutions on the CPU ran faster on channels-last storage, forward
#: and backward, for all of eight families that were tried; for a single picture some ran slower.
ENOUGH = 4


class Layout:
    """How one model's inputs are stored: channels-last where that is faster and does not fail."""

    def __init__(self) -> None:
        self._fails = False

    def run(self, inputs: Tensor, function: Callable[[Tensor], Result]) -> Result:
        """``function`` of a copy of ``inputs``; a second time where the first layout failed."""
        if _gains(inputs) and not self._fails:
            try:
                return function(inputs.clone(memory_format=torch.channels_last))
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self._fails = True  # such as a `view` that only the other layout allows
        return function(inputs.clone(memory_format=torch.contiguous_format))


def _gains(inputs: Tensor) -> bool:
    pictures = inputs.dim() == 4 and inputs.shape[1] > 1 and inputs.device.type == "cpu"
    return pictures and len(inputs) >= ENOUGH
