"""Searches for the models that a script trains; two lasting hooks on each note its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import any_autocast, autocast_name, in_backward
from gradscope.capture.hooks import OwnHook, hook_calls
from gradscope.loading.surgery import unwrapped
from gradscope.training.discovery import stages_imported
from gradscope.training.guard import Guard
from gradscope.training.models import Model
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.replicas import batch_comes_first, batch_size, several_processes
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


class ModelSearch:
    """Keeps the models of a run up to date.

    Attributes:
        in_stages: True if a model is a stage of a pipeline.

    Args:
        parts: the parts of a step; the models and the loop are among them.
        calls: hooks the models' calls.
        found: called after a search that found other models than before.
        pipelining: called once with PyTorch's module for pipeline stages, if the script imports it.
    """

    def __init__(
        self,
        parts: Parts,
        calls: ModelCalls,
        *,
        found: Callable[[], None],
        pipelining: Callable[[ModuleType], None],
    ) -> None:
        self._parts, self._calls = parts, calls
        self._found, self._pipelining = found, pipelining
        self._stages_imported = self.in_stages = False

    def search(self) -> None:
        """Search for models, and hook their calls if there are others than before."""
        parts = self._parts
        parts.loop.changed = False
        imported = stages_imported()
        if imported is not None and not self._stages_imported and parts.guard.observing:
            self._stages_imported = True
            self._pipelining(imported)
        if parts.models.search():
            self.observe_calls()
            if parts.compiled is not None:
                parts.compiled.observe([one.module for one in parts.models if one.compiled])
            parts.sampling.end()
            self._found()

    def backward_begins(self, step: int) -> None:
        """Search before a backward whose model may be unknown, after so many steps."""
        parts = self._parts
        self.find_stages()
        unknown = not parts.optimizers.any and not list(parts.models)
        if parts.loop.wants_models or (unknown and not step):
            self.search()

    def clearing(self) -> None:
        """Search if a module was set; most loops begin with ``zero_grad``."""
        if self._parts.loop.changed:
            self.search()

    def held_others(self, known: ObservedOptimizer) -> None:
        """Search if an optimizer holds parameters of no known model."""
        mine = {p for model in self._parts.models for p in model.module.parameters()}
        if not known.held <= mine:
            self.search()

    def refresh(self) -> None:
        """Search again if something was compiled since the last search."""
        models = self._parts.models
        if models.stale and models.search():
            self.observe_calls()

    def find_stages(self) -> None:
        """Find pipeline stages after every model's forward, through the objects that run them."""
        if self._stages_imported:
            self.in_stages = self._parts.models.settle() or self.in_stages

    def observe_calls(self) -> None:
        """Hook the calls of the known models."""
        parts = self._parts
        self._calls.several = several_processes()
        models = () if parts.models.traced else parts.models
        self._calls.observe(models)
        parts.loop.model_uses.observe(models, parts.guard)

    def probe(self, what: object) -> None:
        """Set the probes before a module or a function is compiled: it is traced with them."""
        assert self._parts.compiled is not None
        self._parts.models.search()
        models = [model.module for model in self._parts.models]
        module = getattr(what, "__self__", what)
        if isinstance(module, nn.Module):
            around = [one for one in models if any(part is module for part in one.modules())]
            models = around or [unwrapped(module)[0]]
        self._parts.compiled.observe(models)
