"""Gives every training step the first batch, inputs and targets together.

A ``DataLoader`` repeats its first batch. Arguments of model calls and of PyTorch's loss functions
are compared with those of the first step, and replaced if they differ. This covers scripts without
a loader, and random numbers beside it. If the targets are not known either, each step starts from
the same state of the random numbers: a script that draws its batches draws the same one again.
"""

from __future__ import annotations

import copy
import functools
import math
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradscope.capture.hooks import hook_optimizers, replace
from gradscope.experiment.interventions._models import (
    given_tensors,
    is_data,
    on_calls,
    with_tensors,
)
from gradscope.leaks.meaning import LABELS, role_named
from gradscope.loading.random_states import RandomState, all_states

_ZERO = ("nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "multi_margin_loss")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


def floor(name: str, target: torch.Tensor, options: dict[str, Any]) -> float | None:
    """Return the loss of a perfect output; None if unknown.

    Args:
        name: the function in ``torch.nn.functional``.
        target: its target.
        options: its keyword arguments.
    """
    if name in _ZERO:
        return 0.0
    plain = options.get("weight") is None and options.get("pos_weight") is None
    if name in _BINARY:
        hard = bool(((target == 0) | (target == 1)).all())
        if hard:
            return 0.0
        certain = target.double().clamp(0, 1)
        reduction = options.get("reduction", "mean")
        least = F.binary_cross_entropy(certain, certain, reduction=reduction)
        return float(least) if plain else None
    if name == "cross_entropy" and not target.is_floating_point():
        smoothing = float(options.get("label_smoothing") or 0.0)
        return 0.0 if not smoothing else None
    if name == "cross_entropy" and plain and options.get("reduction", "mean") == "mean":
        shares = target.double().flatten(2) if target.dim() > 2 else target.double()
        entropy = torch.special.entr(shares).sum(1 if target.dim() > 1 else 0)
        found = float(entropy.mean())
        return found if math.isfinite(found) else None
    return None


#: The loss functions that take the output first and the target second.
LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
    *("gaussian_nll_loss", "poisson_nll_loss", "soft_margin_loss", "multi_margin_loss"),
)


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Repeat the first batch.

    ``notes`` counts "loaded" batches, "targets" of loss functions, and "labels" among arguments.
    "losses" has the value of each loss function in the first step, with the lowest possible value.
    "fresh" counts the targets that differ from those of the first step.
    "drawn" counts the inputs that the script draws again from equal random numbers, "other" those
    that still differ.
    """
    notes.update(loaded=0, targets=0, labels=0, losses=[], fresh=0, drawn=0, other=0)
    _repeat_loaders(patches, notes)
    first, draws = _First(), _Draws()

    def step_ended(*_: Any) -> None:
        first.step_ended()
        known = any(notes[key] for key in ("loaded", "targets", "labels", "own_loss"))
        if notes["changed"] and not known and not draws.repeats:
            draws.repeats = True
            first.forget()
        draws.step_ended()

    for handle in hook_optimizers(lambda *_: None, step_ended):
        patches.callback(handle.remove)

    def change(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        new, call = {}, first.number(id(module))
        for number, (name, tensor, place) in enumerate(given_tensors(module, args, kwargs)):
            if is_data(tensor):
                kept = first.of((id(module), call, number), tensor)
                notes["labels"] += role_named(name, tensor) == LABELS
                if draws.repeats:
                    notes["drawn" if kept is tensor else "other"] += 1
                if kept is not tensor:
                    new[place] = kept
        return with_tensors(args, kwargs, new)

    on_calls(patches, notes, change)
    for name in LOSSES:
        replace(patches, F, name, functools.partial(_on_first_targets, name, first, notes))


class _First:
    """Inputs of the first step, by place and by the call's number in its step."""

    def __init__(self) -> None:
        self.steps = 0
        self._kept: dict[Any, torch.Tensor] = {}
        self._calls: dict[Any, int] = {}

    def number(self, of: Any) -> int:
        """Return the number of earlier calls of this kind in the step."""
        self._calls[of] = self._calls.get(of, -1) + 1
        return self._calls[of]

    def of(self, place: tuple[Any, int, int], tensor: torch.Tensor) -> torch.Tensor:
        """Return the first step's tensor at this place; the given one if both are equal."""
        what, _, where = place
        known = self._kept.get(place)
        known = self._kept.get((what, 0, where)) if known is None and self.steps else known
        if known is None:
            self._kept[place] = tensor.clone()
            return tensor
        same = known.shape == tensor.shape and known.dtype == tensor.dtype
        return tensor if same and torch.equal(known, tensor) else known.clone()

    def step_ended(self) -> None:
        """Note an optimizer's step: calls are counted from 0 again."""
        self.steps += 1
        self._calls.clear()

    def forget(self) -> None:
        """Take the next inputs as the first ones."""
        self._kept.clear()


class _Draws:
    """The random numbers of a step, which later steps may repeat.

    Attributes:
        repeats: True if each step starts from the same state; it is set during a step.
    """

    def __init__(self) -> None:
        self.repeats = False
        self._states: list[RandomState] = []

    def step_ended(self) -> None:
        """Keep the state at the end of a step, or restore the last one kept."""
        if not self.repeats or not self._states:
            self._states = all_states()
            return
        for one in self._states:
            one()


def _repeat_loaders(patches: ExitStack, notes: dict[str, Any]) -> None:
    """Patch loaders: every loader over a dataset gives the dataset's first batch."""
    loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    batches: dict[int, tuple[Any, Any]] = {}  # with the dataset, whose id is not to be used again

    def iterated(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __iter__(self: DataLoader[Any]) -> Any:
            iterator = original(self)
            loaders[iterator] = self.dataset
            return iterator

        return __iter__

    def repeated(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            batch, dataset = original(self), loaders.get(self)
            if dataset is None:
                return batch
            notes["loaded"] += 1
            _, kept = batches.setdefault(id(dataset), (dataset, copy.deepcopy(batch)))
            return copy.deepcopy(kept)  # the script may write into what it gets

        return __next__

    replace(patches, DataLoader, "__iter__", iterated)
    replace(patches, _BaseDataLoaderIter, "__next__", repeated)


def _on_first_targets(
    name: str, first: _First, notes: dict[str, Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the loss function, with the target of the first step; its value there is noted."""

    @functools.wraps(original)
    def loss(input: Any, target: Any = None, *args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled() and getattr(input, "requires_grad", False)
        if not training or not isinstance(target, torch.Tensor) or not is_data(target):
            return original(input, target, *args, **kwargs)
        given = first.of((name, first.number(name), 0), target)
        notes["targets"] += 1
        notes["fresh"] += given is not target
        value = original(input, given, *args, **kwargs)
        if not first.steps and value.dim() == 0:
            weight = next(iter(args), None)  # of the functions that have one, the third argument
            lowest = floor(name, given, {"weight": weight, **kwargs})
            notes["losses"].append([float(value.detach()), lowest])
        return value

    return loss
