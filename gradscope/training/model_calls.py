"""The two lasting hooks on each outermost model, which note its calls' inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import any_autocast, autocast_name, in_backward
from gradscope.capture.hooks import OwnHook, hook_calls
from gradscope.training.guard import Guard
from gradscope.training.models import Model
from gradscope.training.replicas import batch_comes_first, batch_size
from gradscope.training.steps import Parts

#: Whether a call is of plain tensors, with gradients.
_GRADIENTS, _TRANSFORMED = torch.is_grad_enabled, torch._C._are_functorch_transforms_active


class ModelCalls:
    """Hooks the calls of the models that are trained.

    They run in every step, sampled or not: they do as little as possible.

    Attributes:
        several: True if calls are compared with other processes' calls.
        aside: True while calls do not belong to the training.

    Args:
        parts: are notified of each call.
        guard: makes functions of the hooks that never raise.
    """

    several = False
    aside = False

    def __init__(self, parts: Parts, guard: Guard) -> None:
        self._nan_detector, self._current, self._sampling = (
            parts.nan_detector,
            parts.current,
            parts.sampling,
        )
        self._stacks, self._guard, self._loop = parts.stacks, guard, parts.loop
        self._tracer, self._leaks = parts.tracer, parts.leaks
        self._shift = None if parts.compiled is None else parts.compiled.shift
        self._hooks: list[OwnHook] = []

    def observe(self, models: Iterable[Model]) -> None:
        """Hook the models that can have hooks; remove all other hooks."""
        self.close()
        for model in models:
            outer = model.outer()
            if isinstance(outer, torch.jit.ScriptModule):
                continue
            if outer is not None and outer._compiled_call_impl is None:
                hooks = [
                    self._guard.in_training(partial(method, model), trains=False)
                    for method in (self._began, self._ended)
                ]
                self._hooks += hook_calls(outer, *hooks)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _began(
        self, model: Model, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.aside or _TRANSFORMED():
            return
        gradients = _GRADIENTS()
        sampled = self._sampling.sampler is not None
        self._loop.called(model, args, kwargs, gradients=gradients, sampled=sampled)
        if not gradients:
            return
        if self._leaks is not None and not in_backward():
            self._leaks.called(model, args, kwargs)
        if self.several:
            self._given(model, args, kwargs)
        if self._sampling.sampler is not None and not in_backward():
            self._sampling.sampler.called(model, args, kwargs)
        if model.autocast is None and any_autocast():
            model.autocast = autocast_name(model.module)
        if self._stacks.kept:
            self._stacks.end()
        wanted = self._loop.wants_stacks or self._sampling.wants_lines
        # With stacks Python runs inside a compiled call, which `fullgraph=True` forbids.
        if not model.compiled and (
            self._tracer.needs_stacks or (wanted and sampled and not in_backward())
        ):
            self._stacks.begin()
        if self._nan_detector is not None:
            module = model.module_ref()
            assert module is not None
            self._nan_detector.call_began(model.name, module, args, kwargs)

    def _given(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the part of a call that is compared with other processes' calls."""
        if model.batch_first is None:
            model.batch_first = batch_comes_first(model.module)
        size = batch_size(args, kwargs) if model.batch_first else None
        if size is not None:
            self._current.add_batch(size)

    def _ended(self, model: Model, outer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.aside or not _GRADIENTS() or _TRANSFORMED():
            return
        self._loop.returned(model, output)
        if self._nan_detector is not None:
            module = model.module_ref()
            assert module is not None
            call = self._nan_detector.call_ended(module, output)
            if self._shift is not None:
                self._shift.returned(call, output)
        # Between the model and the backward only: it takes time.
        if self._sampling.sampler is not None and not in_backward():
            self._stacks.begin()
