"""Reads the result of a data function as batches, and the step's method used instead of forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset, IterableDataset

from gradscope.errors import (
    ConfigError,
    GradscopeError,
    ModelError,
    Place,
    did_you_mean,
    message_of,
)
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
        return torch.tensor(target, device="cpu")
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


#: Names of a method's arguments: the number of the batch, and arguments that are 0 with one data
#: loader and one optimizer.
_INDEX = ("batch_idx", "batch_nb", "batch_index")
_FIRST = ("dataloader_idx", "optimizer_idx")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class StepMethod:
    """A method of the model that a step calls instead of forward.

    Attributes:
        name: its name in the class.
        takes: the number of its required arguments, without batch numbers.
        as_one: True if it takes the batch as one argument, as Lightning's steps do.
        numbers: the argument for the number of the batch, and other arguments that get 0.
        own_target: True if the config names a loss; the method then does not get the target.
    """

    name: str
    takes: int
    as_one: bool
    numbers: tuple[str, ...] = ()
    own_target: bool = False

    @property
    def notices(self) -> list[str]:
        """Says in a sentence which method a step calls."""
        how = ", with the batch as one argument" if self.as_one else ""
        return [f"call: {self.name} instead of forward{how}"]

    def batches(
        self, given: Callable[[], Iterator[Batch]], target: Any = None
    ) -> Callable[[], Iterator[Batch]]:
        """Return the same batches in the method's form; ``target`` is used if a batch has none."""

        def entered() -> Iterator[Batch]:
            for number, batch in enumerate(given()):
                yield self._entered(batch, target if batch.target is None else batch.target, number)

        return entered

    def _entered(self, batch: Batch, target: Any, number: int) -> Batch:
        extra = {name: number if name in _INDEX else 0 for name in self.numbers}
        wanted = None if self.own_target and not self.as_one else target
        left = target if wanted is None else None
        if self.as_one or (self.takes == 1 and not batch.kwargs and len(batch.args) > 1):
            inputs = batch.args[0] if len(batch.args) == 1 else batch.args or batch.kwargs
            return Batch((inputs if wanted is None else (inputs, wanted),), extra, left)
        room = self.takes > len(batch.args) + len(batch.kwargs)
        if wanted is not None and room:
            return Batch((*batch.args, wanted), {**batch.kwargs, **extra})
        return Batch(batch.args, {**batch.kwargs, **extra}, target)


def step_method(
    model: nn.Module, name: str | None, place: Place | None = None, *, own_target: bool = False
) -> StepMethod | None:
    """Return the method of that name; None for forward.

    Raises:
        ConfigError: the model has no such method; the message suggests the closest.
    """
    if name is None or name == "forward":
        return None
    method = getattr(model, name, None)
    if not inspect.ismethod(method):
        plain = set(dir(nn.Module))
        own = [n for n in dir(type(model)) if n not in plain and not n.startswith("_")]
        own = [n for n in own if inspect.isfunction(getattr(type(model), n, None))]
        listed = ", ".join(f"`{n}`" for n in own[:8])
        raise ConfigError(
            f"`{type(model).__name__}` has no method `{name}` to call",
            place=place,
            help=did_you_mean(name, own)
            or (f"it has {listed}" if own else "leave `call` out: `forward` is called then"),
        )
    parameters = inspect.signature(method).parameters
    numbers = tuple(n for n in parameters if n in (*_INDEX, *_FIRST))
    needed = [
        p.name
        for p in parameters.values()
        if p.kind in _POSITIONAL and p.default is p.empty and p.name not in numbers
    ]
    as_one = len(needed) == 1 and (bool(numbers) or needed[0] == "batch")
    return StepMethod(name, len(needed), as_one, numbers, own_target)


def check_given(found: StepMethod | None, inputs: Any, target: Any, place: Place | None) -> None:
    """Refuse to infer a batch for a method, because no layer shows its content.

    Raises:
        ConfigError: the config has no input, or a target that must be drawn after the output is
            known.
    """
    if found is not None and not found.own_target and isinstance(target, str):
        raise ConfigError(
            f"`target: {target}` is drawn to fit the output, but `{found.name}` needs the target "
            "before that",
            place=place,
            help="name its values, or a source: `target: {shape: [4], fill: randint(10)}`",
        )
    if found is not None and found.as_one and inputs is None:
        raise ConfigError(
            f"what `{found.name}` takes as its batch cannot be inferred",
            place=place,
            help="give `input`, and `target` if the batch is (inputs, target); a list of sources "
            "is a batch of several parts",
        )
