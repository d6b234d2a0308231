"""Patches PyTorch's functions to observe events of a training loop for which PyTorch has no hook.

Each patch wraps a function that does not warn, because another frame would change the line that a
warning names. If a function raises, its traceback contains a frame of this file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gradscope.capture.hooks import replace
from gradscope.training.loop.construction import RegistrationObserver, observe_registrations
from gradscope.training.loop.draws import distributions

#: Private methods of PyTorch that the constructor of a scheduler calls.
_MADE = ((LRScheduler, "_initial_step"), (ReduceLROnPlateau, "_reset"))
#: The arguments of ``torch.nn.functional.kl_div``.
_KL_DIV = ("input", "target", "size_average", "reduce", "reduction", "log_target")


class LoopObserver(RegistrationObserver, Protocol):
    """Receives these events. None of the methods raises."""

    def clearing(self) -> None:
        """Called before ``zero_grad`` clears gradients."""

    def cleared(self, owner: Optimizer | nn.Module) -> None:
        """Called after ``zero_grad`` cleared the gradients of an optimizer or a module."""

    def clipping(self, parameters: Sequence[torch.Tensor], by_norm: bool) -> None:
        """Called before ``clip_grad_norm_`` or ``clip_grad_value_`` clips these parameters'
        gradients."""

    def clipped(self, parameters: Sequence[torch.Tensor], norm: object, bound: object) -> None:
        """Called after ``clip_grad_norm_`` or ``clip_grad_value_`` clipped these parameters'
        gradients.

        Args:
            norm: the returned norm before clipping, or None.
            bound: the limit.
        """

    def scheduler_made(self, scheduler: LRScheduler) -> None:
        """Called during the construction of a learning-rate scheduler."""

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """Called when a new iteration over a data loader begins."""

    def batch_drawn(self, iterator: object, indices: object) -> None:
        """Called after a data loader's iterator drew the indices of a batch from its sampler."""

    def used_up(self, iterator: object) -> None:
        """Called if an exhausted iterator of a data loader is asked for a batch."""

    def seeded(self, seed: object) -> None:
        """Called after ``torch.manual_seed``."""

    def loaded(self, module: nn.Module, result: object) -> None:
        """Called after ``load_state_dict`` of a module returned the keys that did not fit."""

    def read(self, data: object) -> None:
        """Called with the result of ``torch.load``."""

    def drew(self, distribution: object, drawn: object) -> None:
        """Called after ``sample`` of a distribution of ``torch.distributions``."""

    def scored(self, distribution: object, value: object) -> None:
        """Called with the argument of a distribution's ``log_prob``, or ``rsample``'s result."""

    def filled(self, tensor: torch.Tensor) -> None:
        """Called after a function of ``torch.nn.init`` set all entries of a tensor to one
        number."""

    def diverged(self, given: object, target: object, log_target: object) -> None:
        """Called before ``torch.nn.functional.kl_div`` on these arguments."""

    def tripled(self) -> None:
        """Called before ``torch.nn.functional.triplet_margin_loss``."""

    def restoring(self, optimizer: Optimizer) -> None:
        """Called before ``load_state_dict`` of an optimizer."""

    def restored(self, optimizer: Optimizer) -> None:
        """Called after ``load_state_dict`` of an optimizer."""

    def unscaled(self, optimizer: Optimizer) -> None:
        """Called after a gradient scaler divided an optimizer's gradients by the loss scale."""

    def scale_updated(self) -> None:
        """Called after a gradient scaler updated the loss scale."""


def observe_loop(observer: LoopObserver) -> ExitStack:
    """Call ``observer`` at each of these events, until the stack is closed."""
    patches = ExitStack()

    def patch(
        place: Any,
        name: str,
        *,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any, Any], None] | None = None,
    ) -> None:
        replace(patches, place, name, lambda f: _around(f, before, after))

    for owner in (Optimizer, nn.Module):
        patch(
            *(owner, "zero_grad"),
            before=lambda _: observer.clearing(),
            after=lambda own, _: observer.cleared(own),
        )
    observe_registrations(observer, patches)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        by_norm = name == "clip_grad_norm_"
        clip = _clipping(getattr(nn.utils.clip_grad, name), observer, by_norm)
        for place in (nn.utils, nn.utils.clip_grad):
            replace(patches, place, name, functools.partial(_instead, clip))
    for kind, name in _MADE:
        if hasattr(kind, name):
            patch(kind, name, after=lambda own, _: observer.scheduler_made(own))
    patch(DataLoader, "__iter__", before=observer.epoch_begins)
    # The method is private; in a PyTorch without it, the indices of batches are unknown.
    if hasattr(_BaseDataLoaderIter, "_next_index"):
        replace(patches, _BaseDataLoaderIter, "_next_index", lambda f: _drawing(f, observer))
    for place in (torch, torch.random):
        patch(place, "manual_seed", before=observer.seeded)
    patch(nn.Module, "load_state_dict", after=observer.loaded)
    patch(torch, "load", after=lambda _, data: observer.read(data))
    for distribution in distributions():
        if "sample" in vars(distribution):
            patch(distribution, "sample", after=observer.drew)
        if "rsample" in vars(distribution):
            patch(distribution, "rsample", after=observer.scored)
        if "log_prob" in vars(distribution):
            replace(patches, distribution, "log_prob", lambda f: _with_first(f, observer.scored))
    patch(
        *(Optimizer, "load_state_dict"),
        before=observer.restoring,
        after=lambda own, _: observer.restored(own),
    )
    replace(patches, nn.functional, "kl_div", lambda f: _comparing(f, observer))
    replace(patches, nn.functional, "triplet_margin_loss", lambda f: _tripling(f, observer))
    for name in ("constant_", "ones_", "zeros_"):
        patch(nn.init, name, after=lambda _, tensor: observer.filled(tensor))
    scaler = torch.amp.GradScaler
    replace(
        patches, scaler, "unscale_", lambda f: _with_first(f, lambda _, one: observer.unscaled(one))
    )
    patch(scaler, "update", after=lambda *_: observer.scale_updated())
    return patches


def _instead(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _around(
    original: Callable[..., Any],
    before: Callable[[Any], None] | None,
    after: Callable[[Any, Any], None] | None,
) -> Callable[..., Any]:
    """Wrap the function: call ``before`` with its object, and ``after`` with the object and the
    result."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        own = args[0] if args else None
        if before is not None:
            before(own)
        result = original(*args, **kwargs)
        if after is not None:
            after(own, result)
        return result

    return function


def _with_first(
    original: Callable[..., Any], act: Callable[[Any, Any], None]
) -> Callable[..., Any]:
    """Wrap the method: call ``act`` after it, with the object and the first argument."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        act(self, next(iter((*args, *kwargs.values()))))
        return result

    return method


def _drawing(original: Callable[..., Any], observer: LoopObserver) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        try:
            indices = original(self)
        except StopIteration:
            observer.used_up(self)
            raise
        observer.batch_drawn(self, indices)
        return indices

    return next_index


def _comparing(original: Callable[..., Any], observer: LoopObserver) -> Callable[..., Any]:
    @functools.wraps(original)
    def kl_div(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            given = dict(zip(_KL_DIV, args, strict=False)) | kwargs
            observer.diverged(given.get("input"), given.get("target"), given.get("log_target"))
        return original(*args, **kwargs)

    # A script that calls it is compiled with PyTorch's own.
    vars(kl_div)["__prepare_scriptable__"] = lambda: original
    return kl_div


def _tripling(original: Callable[..., Any], observer: LoopObserver) -> Callable[..., Any]:
    @functools.wraps(original)
    def triplet_margin_loss(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            observer.tripled()
        return original(*args, **kwargs)

    vars(triplet_margin_loss)["__prepare_scriptable__"] = lambda: original
    return triplet_margin_loss


def _clipping(
    original: Callable[..., Any], observer: LoopObserver, by_norm: bool
) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        one = isinstance(parameters, torch.Tensor)
        if not one:
            parameters = list(parameters)  # what is used up by this, the original uses up, too
        given = [parameters] if one else parameters
        observer.clipping(given, by_norm)
        norm = original(parameters, *args, **kwargs)
        bound = args[0] if args else kwargs.get("max_norm")
        observer.clipped(given, norm, bound)
        return norm

    return clip
