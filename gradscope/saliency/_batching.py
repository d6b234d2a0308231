"""Runs forward passes over many perturbed inputs, in the fastest batch size and memory layout.

On two CPU cores, an image often takes longer in a large batch than alone; on a GPU far less. So
both are measured, on the first real items, and almost no pass is wasted. Passes with a graph are
too few to try both layouts: ``Layout`` chooses for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradscope import progress
from gradscope.errors import OptionError, message_of

Make = Callable[[slice], Tensor]
Run = Callable[[Tensor, slice], Tensor]

#: Larger batches than these gained nothing where they were tried, and cost memory.
#: The limit of values counts the inputs' elements: eight photographs of 224² need about 200 MiB.
LARGEST = {"cpu": 32}
LARGEST_VALUES = {"cpu": 8 * 3 * 224 * 224}
LARGEST_ELSEWHERE = 512

#: A batch is faster when it takes less than this share of the best time for one item.
FASTER = 0.98

#: Fewer items than this do not repay a trial of the other memory layout.
WORTH_A_LAYOUT = 32


class Batches:
    """The batch size and memory layout for one model's inputs: measured once, kept for later
    methods.

    Attributes:
        size: items per pass; None until it has been measured.
        layout: ``channels_last`` if the model runs faster with that memory layout.
        single: the reason why items run one by one; None if they may share a pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.size: int | None = None
        self.layout = torch.contiguous_format
        self.single = shares_statistics(model)

    def scores(self, make: Make, run: Run, count: int) -> Tensor:
        """Return the scores [count] of ``count`` items; batching changes them only by rounding.

        Args:
            make: maps a slice of the items to their inputs [M, C, H, W]. It may be called twice for
                the same items and must return the same inputs.
            run: maps inputs [M, C, H, W] and their slice to scores [M].
            count: the number of items, at least one.
        """
        with torch.inference_mode():
            passes = _Passes(self, make, run, count)
            if self.size is None and not self.single:
                passes.measure()
            passes.rest(self.size or passes.size)
            scores = torch.cat(passes.scores)
        return scores.clone()  # no longer a tensor of inference mode: callers may compute with it


class _Passes:
    """The passes of one sequence of items through the model."""

    def __init__(self, batches: Batches, make: Make, run: Run, count: int) -> None:
        self.batches, self.make, self.run, self.count = batches, make, run, count
        self.scores: list[Tensor] = []
        self.done = 0
        self.size = 1

    @property
    def left(self) -> int:
        return self.count - self.done

    def inputs(self, items: slice) -> Tensor:
        made = self.make(items)
        if self.batches.layout is not torch.channels_last or made.dim() != 4:
            return made
        return made.contiguous(memory_format=torch.channels_last)

    def step(self, size: int) -> float:
        """Run the next ``size`` items; return the seconds per item."""
        items = slice(self.done, self.done + size)
        began = time.perf_counter()
        scores = self.run(self.inputs(items), items).reshape(-1)
        scores[:1].tolist()  # waits for a device that works in the background
        took = (time.perf_counter() - began) / size
        self.scores.append(scores)
        self.done += size
        progress.count(self.done, self.count)
        return took

    def twice(self, size: int) -> float:
        """Return the better time of two passes: the first of a shape includes one-time setup."""
        return min(self.step(size), self.step(size))

    def measure(self) -> None:
        """Try sizes 1, 2, 4, … until the time per item has not improved twice; only then keep the
        size.

        If there are too few items for that, the next method measures again.
        """
        best, worse, size = float("inf"), 0, 1
        while self.left >= 2 * size:
            if size == 2 and (why := self.dependence()):
                self.batches.single = why
                self.size = 1
                return
            try:
                took = self.twice(size)
            except RuntimeError as error:
                if not is_out_of_memory(error) or size == 1:
                    raise
                worse = 2
            else:
                worse = 0 if took < FASTER * best else worse + 1
                if worse == 0:
                    best, self.size = took, size
                if size == 4 and self.left >= WORTH_A_LAYOUT and self.other_layout_wins(took):
                    best, worse, self.size = float("inf"), 0, size
            size *= 2
            if worse == 2 or size > self.largest():
                self.batches.size = self.size
                return

    def largest(self) -> int:
        """Largest number of items in a pass, by count and by values."""
        first = self.make(slice(0, 1))
        device = first.device.type
        values = LARGEST_VALUES.get(device)
        largest = LARGEST.get(device, LARGEST_ELSEWHERE)
        return largest if values is None else min(largest, max(1, values // first.numel()))

    def dependence(self) -> str | None:
        """Return why the first two items, run alone, cannot share a pass; None if they can."""
        pair = slice(0, 2)
        try:
            together = self.run(self.inputs(pair), pair).reshape(-1)
        except Exception as error:
            if is_out_of_memory(error):
                return "memory has no room for two inputs"
            return "the model takes one input at a time"
        alone = torch.cat(self.scores)[:2]
        half = alone.dtype in (torch.float16, torch.bfloat16)
        within = 5e-2 if half else 1e-3
        if torch.allclose(together, alone, rtol=within, atol=within / 100, equal_nan=True):
            return None
        return "the model's output for an input depends on its batch"

    def other_layout_wins(self, took: float) -> bool:
        """Try channels-last inputs, and keep them if an item then takes less than ``took``."""
        first = self.make(slice(0, 1))
        if first.dim() != 4 or first.shape[1] == 1:
            return False  # one channel: both layouts are the same
        self.batches.layout = torch.channels_last
        try:
            wins = self.twice(4) < FASTER * took
        except RuntimeError:
            wins = False  # such as a `view` that only the other layout allows
        if not wins:
            self.batches.layout = torch.contiguous_format
        return wins

    def rest(self, size: int) -> None:
        """Run the remaining items, in halves if memory does not suffice."""
        while self.left:
            size = min(size, self.left)
            try:
                self.step(size)
            except RuntimeError as error:
                if not is_out_of_memory(error) or size == 1:
                    raise
                size //= 2
                if self.batches.size is not None:
                    self.batches.size = size


def is_out_of_memory(error: Exception) -> bool:
    """Return True if a device or the CPU's allocator ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = message_of(error).lower()
    return any(
        words in message for words in ("out of memory", "not enough memory", "can't allocate")
    )


def shares_statistics(model: nn.Module) -> str | None:
    """Return the reason why items must not share a pass, such as a batch norm.

    Raises:
        OptionError: a batch norm is in training mode, so each pass would change it.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm):
            continue
        if module.training and module.track_running_stats:
            raise OptionError(
                f"`{name}` normalises by the batch and each pass would change its statistics",
                help="put the model in eval mode",
            )
        if module.training or module.running_mean is None:
            return f"`{name}` normalises by the batch"
    return None


Result = TypeVar("Result")

#: From this many pictures on, convolutions on the CPU ran faster on channels-last storage, forward
#: and backward, for all of eight families that were tried; for a single picture some ran slower.
ENOUGH = 4


class Layout:
    """Memory layout of one model's inputs: channels-last if faster and without errors."""

    def __init__(self) -> None:
        self._fails = False

    def run(self, inputs: Tensor, function: Callable[[Tensor], Result]) -> Result:
        """Return ``function(inputs)``, computed on a copy in the layout; if that fails, in the
        other layout."""
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
