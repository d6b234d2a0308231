"""Adapts a target to the output: class ids, values, or random ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradscope.errors import ModelError
from gradscope.loading.batches import MicroBatch

RANDOM = "random"


class Mismatch(ModelError):
    """An output and a target that do not match; ``kind`` is the kind of error."""

    def __init__(self, message: str, *, kind: str, help: str) -> None:
        super().__init__(message, help=help)
        self.kind = kind


class Draws:
    """Random targets from a separate generator: the global state stays unchanged, and equal outputs
    get equal targets in every step. ``part`` has the samples of a batch that the output belongs to;
    they get the same targets as in the full batch.
    """

    def __init__(self, seed: int, part: MicroBatch | None = None) -> None:
        self.seed = seed
        self.part = part
        self.notices: list[str] = []

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed % 2**64)

    def _whole(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
        """Return the shape to draw, and the slice of this part."""
        part = self.part
        if part is None or not shape or shape[0] != part.stop - part.start:
            return shape, ...
        return (part.total, *shape[1:]), slice(part.start, part.stop)

    def classes(self, shape: tuple[int, ...], count: int, device: torch.device) -> Tensor:
        """Draw random class ids below ``count``."""
        shape, own = self._whole(shape)
        ids = torch.randint(count, shape, generator=self._generator())
        few = ids.flatten()[:8].tolist()
        words = str(few) if ids.ndim == 1 and ids.numel() <= 8 else f"{list(shape)} of {count}"
        self.notices.append(f"target: random classes {words if ids.ndim else ids.item()}")
        return ids[own].to(device)

    def values(self, like: Tensor) -> Tensor:
        """Draw random normal values of a tensor's shape."""
        shape, own = self._whole(tuple(like.shape))
        drawn = torch.randn(shape, generator=self._generator())
        self.notices.append(f"target: random values {list(shape)}")
        return drawn[own].to(like.device, like.dtype)


def as_tensor(target: Any, name: str, device: torch.device) -> Tensor:
    """Return the target on the output's device.

    Raises:
        ModelError: the target is nested, so only the user's own loss can read it.
    """
    try:
        tensor = target if isinstance(target, Tensor) else torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{name} compares with numbers; the target is a {type(target).__name__}",
            help="set `loss` to a `_target_` of your own, or `output` for the model's own loss",
        ) from error
    return tensor.to(device)


def class_shape(scores: Tensor, name: str) -> tuple[int, ...]:
    """Return the shape of class ids for scores ``[N, C, …]`` or ``[C]``.

    Raises:
        ModelError: the scores have no class dimension.
    """
    if scores.ndim == 0:
        raise ModelError(
            f"{name} expects scores [N, C]; the first floating output is one number",
            help="set `loss: sum`, or a `_target_` of your own",
        )
    return (*scores.shape[:1], *scores.shape[2:]) if scores.ndim > 1 else ()


def class_count(scores: Tensor) -> int:
    """Return the number of classes: the size of the scores' class dimension."""
    return scores.shape[1 if scores.ndim > 1 else 0]


def classes(scores: Tensor, target: Any, name: str, draws: Draws) -> Tensor:
    """Return class ids (or, for cross entropy, probabilities) for the scores.

    A single id counts for every row. The loss checks the range of ids.

    Raises:
        ModelError: the target has a wrong length, shape or type.
    """
    shape, count = class_shape(scores, name), class_count(scores)
    if target is None or target is RANDOM or isinstance(target, str):
        if count == 0:
            raise ModelError(f"{name} has no class to draw: the output is {list(scores.shape)}")
        return draws.classes(shape, count, scores.device)
    ids = as_tensor(target, name, scores.device)
    floating = ids.is_floating_point()
    if floating and ids.shape == scores.shape and name == "cross_entropy":
        return ids.to(scores.dtype)
    if floating or ids.is_complex() or ids.dtype is torch.bool:
        kind = str(ids.dtype).removeprefix("torch.")
        raise Mismatch(
            f"the target is {kind} {list(ids.shape)}; {name} expects class ids, integers",
            kind="dtype-mismatch",
            help="cast the class ids, `target.long()` (`dtype: int64`), or use `loss: mse` for"
            " values",
        )
    ids = _for_each(ids, shape)
    if tuple(ids.shape) != shape:
        raise _mismatch(ids, shape, scores)
    return ids.to(torch.int64)


def given_classes(scores: Tensor, target: Any, name: str) -> Tensor:
    """Return the user's class ids unchecked, for the user's own loss.

    A single id counts for every row, as in ``classes``.
    """
    return _for_each(as_tensor(target, name, scores.device), class_shape(scores, name))


def _for_each(ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    return ids.expand(shape) if ids.ndim == 0 and shape else ids


def _mismatch(ids: Tensor, shape: tuple[int, ...], scores: Tensor) -> Mismatch:
    help = f"give class ids of shape {list(shape)}"
    if ids.ndim == 1 and len(shape) == 1:
        sentence = f"the target is {list(ids.shape)}, but the batch needs {list(shape)} class ids"
        help = f"give {shape[0]} class ids, one for each row of the output"
    else:
        sentence = (
            f"the target is {list(ids.shape)}; scores {list(scores.shape)} go with class ids "
            f"{list(shape)}"
        )
    places = tuple(scores.shape[:-1])
    if len(places) > 1 and tuple(ids.shape) in (places, (math.prod(places),)):
        sentence = (
            f"the target is {list(ids.shape)}; of the scores {list(scores.shape)} the classes are "
            f"expected at dimension 1, and {scores.shape[-1]} are last"
        )
        help = (
            "move them in the model, `logits.movedim(-1, 1)`, or flatten both: a loss of your own "
            f"compares `logits.flatten(0, {len(places) - 1})` with `target.flatten()`"
        )
    if len(shape) > 0 and tuple(ids.shape) == (shape[0], 1, *shape[1:]):
        help = "drop its dimension of one: `target.squeeze(1)`"
    return Mismatch(sentence, kind="shape-mismatch", help=help)


def values(output: Tensor, target: Any, name: str, draws: Draws) -> Tensor:
    """Return values in the output's shape and dtype; a single number counts for all of them.

    Raises:
        ModelError: there is no target, or it has another shape, which would broadcast silently.
    """
    shape = list(output.shape)
    if isinstance(target, str):
        if name != "bce_with_logits":
            return draws.values(output)
        return draws.classes(tuple(shape), 2, output.device).to(output.dtype)
    if target is None:
        raise ModelError(
            f"{name} has no target to compare the output {shape} with",
            help="give `target` values, a file, or `random`",
        )
    wanted = as_tensor(target, name, output.device).to(output.dtype)
    if wanted.numel() == 1:
        return wanted.reshape(()).expand(output.shape)
    if _squeezed(wanted) == _squeezed(output):
        return wanted.reshape(output.shape)
    raise Mismatch(
        f"the target is {list(wanted.shape)} and the output {shape}: {name} compares like shapes",
        kind="shape-mismatch",
        help=f"give a target of shape {shape}",
    )


def _squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]
