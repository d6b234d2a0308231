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
from gradscope.training.loop.construction import observe_registrations
from gradscope.training.loop.draws import distributions

#: Private methods of PyTorch that the constructor of a scheduler calls.
_MADE = ((LRScheduler, "_initial_step"), (ReduceLROnPlateau, "_reset"))
#: The functions of ``torch.nn.init`` that draw a whole weight at random.
_NORMAL = ("normal_", "trunc_normal_")
_SCALED = (
    *("uniform_", "orthogonal_", "xavier_uniform_", "xavier_normal_"),
    *("kaiming_uniform_", "kaiming_normal_"),
)
#: The arguments of ``torch.nn.functional.kl_div``.
_KL_DIV = ("input", "target", "size_average", "reduce", "reduction", "log_target")


class LoopObserver(Protocol):
    """Receives these events. None of the functions raises."""

    #: ``zero_grad`` is about to clear gradients; it has cleared those of an optimizer or a module.
    clearing: Callable[[], None]
    cleared: Callable[[Optimizer | nn.Module], None]
    #: ``clip_grad_norm_`` or ``clip_grad_value_`` is about to clip these parameters' gradients,
    #: by their norm or not; it has clipped them: the norm before (or None), and the limit.
    clipping: Callable[[Sequence[torch.Tensor], bool], None]
    clipped: Callable[[Sequence[torch.Tensor], object, object], None]
    scheduler_made: Callable[[LRScheduler], None]  # during its construction
    epoch_begins: Callable[[DataLoader[Any]], None]  # a new iteration over a data loader
    batch_drawn: Callable[[object, object], None]  # a loader's iterator, and the batch's indices
    used_up: Callable[[object], None]  # an exhausted iterator is asked for a batch
    seeded: Callable[[object], None]  # ``torch.manual_seed`` was called
    loaded: Callable[[nn.Module, object], None]  # ``load_state_dict``: the keys that did not fit
    read: Callable[[object], None]  # the result of ``torch.load``
    drew: Callable[[object, object], None]  # a distribution, and the result of its ``sample``
    #: A distribution, and the argument of its ``log_prob`` or the result of its ``rsample``.
    scored: Callable[[object, object], None]
    filled: Callable[[torch.Tensor], None]  # ``torch.nn.init`` set all entries to one number
    #: ``torch.nn.init`` set the entries to random numbers, of a given deviation or not.
    drawn: Callable[[torch.Tensor, bool], None]
    diverged: Callable[[object, object, object], None]  # the arguments of ``kl_div``, before it
    tripled: Callable[[], None]  # ``triplet_margin_loss`` is about to run
    #: ``load_state_dict`` of an optimizer is about to run; it has run.
    restoring: Callable[[Optimizer], None]
    restored: Callable[[Optimizer], None]
    unscaled: Callable[[Optimizer], None]  # a gradient scaler divided its gradients by the scale
    scale_updated: Callable[[], None]  # a gradient scaler updated the loss scale
    #: A module or a parameter is about to be set on a module under this name.
    module_set: Callable[[nn.Module, str, nn.Module], None]
    parameter_set: Callable[[nn.Module, str, nn.Parameter], None]


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
    observe_registrations(observer.module_set, observer.parameter_set, patches)
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
    for name in _NORMAL:
        patch(nn.init, name, after=lambda _, tensor: observer.drawn(tensor, True))
    for name in _SCALED:
        patch(nn.init, name, after=lambda _, tensor: observer.drawn(tensor, False))
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
