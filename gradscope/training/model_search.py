"""Searches for the models that a script trains, and hooks their calls."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from torch import nn

from gradscope.loading.surgery import unwrapped
from gradscope.training.model_calls import ModelCalls
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.pipeline_stages import stages_imported
from gradscope.training.replicas import several_processes
from gradscope.training.steps import Parts


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
