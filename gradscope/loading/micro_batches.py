"""A batch in parts, as gradient accumulation feeds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradscope.errors import ConfigError
from gradscope.loading.batches import Batch
from gradscope.nesting import find, replaced


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The samples from ``start`` up to before ``stop`` of a batch of ``total``."""

    start: int
    stop: int
    total: int


def cut(batch: Batch, count: int) -> Iterator[tuple[MicroBatch, Batch]]:
    """``count`` micro-batches, as equal as can be, the larger ones first.

    Tensors whose first dimension is that of the first input are cut there, and the lists of images
    that detection models take; all else goes into each micro-batch as it is.

    Raises:
        ConfigError: fewer samples than micro-batches.
    """
    size = batch_size(batch)
    if size < count:
        raise ConfigError(
            f"a batch of {size} cannot be cut into {count} micro-batches",
            help=f"give `accumulate` {max(size, 1)} or less, or a larger batch: `input.batch=8`",
        )
    start = 0
    for number in range(count):
        stop = start + size // count + (number < size % count)
        part = MicroBatch(start, stop, size)
        args = tuple(_cut(argument, part) for argument in batch.args)
        kwargs = {name: _cut(argument, part) for name, argument in batch.kwargs.items()}
        yield part, Batch(args, kwargs, _cut(batch.target, part))
        start = stop


def batch_size(batch: Batch) -> int:
    """How many samples: the first dimension of the first input that has one."""
    if batch.args and isinstance(batch.args[0], list):
        return len(batch.args[0])
    tensors = find((batch.args, batch.kwargs), Tensor)
    return next((int(t.shape[0]) for _, t in tensors if t.dim()), 0)


def _cut(item: Any, part: MicroBatch) -> Any:
    def cut_tensor(tensor: Tensor) -> Tensor:
        full = not tensor.dim() or tensor.shape[0] != part.total
        return tensor if full else tensor[part.start : part.stop]

    if isinstance(item, list) and len(item) == part.total:
        return item[part.start : part.stop]
    return replaced(item, Tensor, cut_tensor)
