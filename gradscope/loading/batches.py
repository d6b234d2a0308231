"""Reads the result of a data function as batches.

A list, a generator, a DataLoader or another iterable holds batches; a tensor, a tuple or a mapping
is one. A batch is ``inputs``, ``(inputs, target)``, or a mapping: ``{inputs: …, target: …}`` or
keyword arguments. Inputs in a tuple or list are positional, in a mapping keyword arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset, IterableDataset

from gradscope.errors import ConfigError, GradscopeError, ModelError, message_of
from gradscope.loading.sources import Context
from gradscope.loading.sources.tensors import mover
from gradscope.nesting import find, replaced

_FORMS = "a batch is `inputs`, `(inputs, target)` or `{inputs: …, target: …}`"


@dataclass
class Batch:
    """The arguments of the model and the target of the loss, on the device."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    target: Any = None


def raw_batches(made: Any, context: Context, key: str) -> Iterator[Any]:
    """Yield the batches of the data function's result, unchanged.

    Raises:
        ConfigError: the result holds no batches, or an iterable yields none.
        ModelError: the user's code raised while it made the next batch.
    """
    if made is None or isinstance(made, (str, bytes, bool, int, float)):
        raise context.error(key, f"the data function gave {made!r}, which is not a batch", _FORMS)
    if isinstance(made, Dataset) and not isinstance(made, IterableDataset):
        raise context.error(
            key,
            f"{type(made).__name__} gives single samples, not batches",
            "return `torch.utils.data.DataLoader(dataset, batch_size=2)` from a function",
        )
    if _is_one_batch(made):
        yield made
        return
    count = 0
    with _blame(context, key):
        batches = iter(made)
    while True:
        try:
            with _blame(context, key):
                batch = next(batches)
        except StopIteration:
            break
        count += 1
        yield batch
    if not count:
        raise context.error(key, "the data function gave no batch", _FORMS)


def _is_one_batch(made: Any) -> bool:
    if isinstance(made, (Tensor, np.ndarray, tuple, Mapping)):
        return True
    return not isinstance(made, Iterable) and not hasattr(made, "__getitem__")


class _blame:
    """Turn an exception of the user's code into a ModelError; let StopIteration pass."""

    def __init__(self, context: Context, key: str) -> None:
        self.context, self.key = context, key

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, (StopIteration, GradscopeError)):
            message = f"making the input failed: {type(error).__name__}: {message_of(error)}"
            problem = self.context.error(self.key, message).problems[0]
            raise ModelError(problem) from error


def to_batch(raw: Any, context: Context, key: str) -> Batch:
    """Convert a raw batch: its tensors become new leaves on the run's device and in its dtype."""
    inputs, target = _split(raw, context, key)
    move = mover(context, key)
    detection = context.kind.category == "detection"
    if (
        detection
        and isinstance(target, (list, tuple))
        and all(isinstance(item, Mapping) for item in target)
    ):
        return Batch((list(map(move, inputs)), list(map(move, target))))
    target = _numbers(move(target))
    if isinstance(inputs, Mapping):
        return Batch((), {str(name): move(value) for name, value in inputs.items()}, target)
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        return Batch(tuple(map(move, inputs)), {}, target)
    return Batch((move(inputs),), {}, target)


def as_it_is(raw: Any, context: Context, key: str, *, unpacked: bool) -> Batch:
    """Return a raw batch as one argument; with ``unpacked``, as one argument for each part."""
    moved = mover(context, key)(raw)
    return Batch(tuple(moved)) if unpacked else Batch((moved,))


def _split(raw: Any, context: Context, key: str) -> tuple[Any, Any]:
    if isinstance(raw, Mapping) and "inputs" in raw and set(raw) <= {"inputs", "target"}:
        return raw["inputs"], raw.get("target")
    if isinstance(raw, (list, tuple)) and not isinstance(raw, PackedSequence):
        if len(raw) not in (1, 2):
            raise context.error(
                key,
                f"a batch of {len(raw)} parts could be inputs, or inputs and a target",
                f"{_FORMS}: `((a, b, c), None)` has three inputs and no target",
            )
        return raw[0], raw[1] if len(raw) == 2 else None
    return raw, None


def _numbers(target: Any) -> Any:
    """Return class ids that are plain numbers as a tensor."""
    flat = target if isinstance(target, list) and target else [target]
    if all(isinstance(item, (bool, int, float)) for item in flat):
        return torch.tensor(target)
    return target


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The samples from ``start`` up to, but without, ``stop`` of a batch of ``total``."""

    start: int
    stop: int
    total: int


def cut(batch: Batch, count: int) -> Iterator[tuple[MicroBatch, Batch]]:
    """Split a batch into ``count`` micro-batches of nearly equal size, the larger ones first.

    Tensors with the same first dimension as the first input are split, and so are lists of images
    of detection models. All else goes into each micro-batch unchanged.

    Raises:
        ConfigError: there are fewer samples than micro-batches.
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
        args = tuple(rows_of(argument, part) for argument in batch.args)
        kwargs = {name: rows_of(argument, part) for name, argument in batch.kwargs.items()}
        yield part, Batch(args, kwargs, rows_of(batch.target, part))
        start = stop


def batch_size(batch: Batch) -> int:
    """Return the number of samples: the first dimension of the first input that has one."""
    if batch.args and isinstance(batch.args[0], list):
        return len(batch.args[0])
    tensors = find((batch.args, batch.kwargs), Tensor)
    return next((int(t.shape[0]) for _, t in tensors if t.dim()), 0)


def rows_of(item: Any, part: MicroBatch) -> Any:
    """Select the samples of a micro-batch in every tensor of ``item`` with a row for each
    sample."""

    def cut_tensor(tensor: Tensor) -> Tensor:
        full = not tensor.dim() or tensor.shape[0] != part.total
        return tensor if full else tensor[part.start : part.stop]

    if isinstance(item, list) and len(item) == part.total:
        return item[part.start : part.stop]
    return replaced(item, Tensor, cut_tensor)
