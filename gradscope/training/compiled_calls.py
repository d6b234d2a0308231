"""Probes the calls inside compiled models (``run --compiled``), and collects a step's events."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.capture.calls import in_backward
from gradscope.capture.hooks import hookable_modules, select_layers
from gradscope.capture.names import named_modules
from gradscope.capture.stats import measure
from gradscope.capture.traced_probes import (
    COMPILED,
    GRADIENT,
    Event,
    Probe,
    add_probe,
    calls_of,
    finished,
    listen,
)
from gradscope.errors import LayerError
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.modules import ModuleCall
from gradscope.training.nan_detector.first_event import first_non_finite_event
from gradscope.training.nan_detector.first_module import DEEP_ADVICE
from gradscope.training.probe_shift import ProbeShift

_COMPILER = "compile with `backend='eager'` and `backend='aot_eager'`, to see which one has it too"

#: Nodes of the loss graph that hide what a compiled model computed.
_OPAQUE = ("CompiledFunction", "_WithGradient")


class CompiledCalls:
    """Probes the modules of the models that a script compiles, before they are traced.

    Attributes:
        shift: by how much the probes move the loss of step 1.
        compiled_backward: True if a backward ran under compiled autograd, whose graph gradscope's
            hooks divide.

    Args:
        layers: patterns of the modules to probe.
        guard: makes functions of the probes that never raise.
        checked: whether every step is checked for NaN and Inf.
    """

    def __init__(
        self,
        layers: Sequence[str],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
        *,
        checked: bool,
    ) -> None:
        self._layers, self._checked = layers, checked
        self.shift = ProbeShift(checked=checked)
        self.compiled_backward = self._any = False
        self._see = guard(self._saw)
        self._probes: dict[nn.Module, Probe] = {}
        self._events: list[Event] = []
        self._sampled = False
        #: How many gradients each call had when it was last taken, by its first event.
        self._taken: dict[Event, int] = {}

    def observe(self, models: Iterable[nn.Module]) -> None:
        """Probe the modules of these models that have no probe yet."""
        for probe in self._probes.values():
            probe.follow()
        for model in models:
            self._any = True
            try:
                chosen = select_layers(model, self._layers)
            except LayerError:  # a pattern that is meant for another of several models
                continue
            takes = set(hookable_modules(model))
            for module in chosen:
                if module in takes and module not in self._probes:
                    self._probes[module] = add_probe(module, self._see)
        self._listen()

    def backward_begins(self) -> None:
        """Note the start of a backward."""
        module = sys.modules.get("torch._dynamo.compiled_autograd")
        if getattr(module, "compiled_autograd_enabled", False):
            self.compiled_backward = True

    def lines(self) -> list[str]:
        """The notices for the end of the run."""
        if not self._any:
            return [
                "--compiled: the script compiles no model; its calls are recorded as without it"
            ]
        lines = [self.shift.line()]
        if self.compiled_backward:
            lines.append(
                "--compiled: the script uses compiled autograd: gradscope adds graph breaks to it"
            )
        return lines

    def sample_begins(self) -> None:
        """Measure every tensor from now on."""
        self._events, self._taken, self._sampled = [], {}, True
        self._listen()

    def sample_ended(self) -> None:
        """From now on only check tensors, or not even that."""
        self._sampled = False
        self.step_ended()
        self._listen()

    def step_ended(self) -> None:
        """Release the recorded events, unless a sample is still running."""
        if self._events and not self._sampled:
            self._events = []

    def close(self) -> None:
        """Remove the probes. A module that is called again is compiled again."""
        self._checked = False
        self.sample_ended()
        for probe in self._probes.values():
            probe.remove()
        self._probes.clear()

    def _listen(self) -> None:
        listen(self, on=bool(self._probes) and (self._sampled or self._checked))

    def _saw(self, probe: Probe, x: Tensor, path: str, kind: int) -> None:
        what, compiled = kind % COMPILED, kind >= COMPILED
        if what != GRADIENT and in_backward():  # a checkpoint computes it again
            return
        if self._sampled:
            self._events.append(Event(probe, path, what, compiled, measure(x)))
        elif x.is_floating_point() or x.is_complex():
            x = x.detach()
            real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
            wide = torch.float32 if real.dtype.itemsize < 4 else None
            self._events.append(Event(probe, path, what, compiled, real.sum(dtype=wide)))

    def take(self, model: nn.Module) -> tuple[tuple[ModuleCall, ...], Counter[nn.Module]]:
        """Return the calls of a model that began, or got gradients, since the last request.

        Returns:
            Their records, and how often each module was called.
        """
        names = named_modules(model)
        news = []
        for call in calls_of(self._events, names):
            if self._taken.get(call.first) != len(call.gradients):
                self._taken[call.first] = len(call.gradients)
                news.append(call)
        return finished(news, names), Counter(call.module for call in news)

    def refined(
        self,
        origins: tuple[NonFiniteOrigin, ...],
        models: Sequence[tuple[str, nn.Module]],
        where: str,
        *,
        replayed: bool,
    ) -> tuple[NonFiniteOrigin, ...]:
        """Return the origins of a NaN or Inf. If no operation was found, use the probes' events.

        Args:
            origins: the origins that a replay found, or a record without one.
            models: the run's models, with their names.
            where: "loss" for a loss with NaN or Inf; "gradients" if only they have it.
            replayed: whether all calls of the step were replayed, eagerly.
        """
        if any((origin.op or origin.name) and origin.op not in _OPAQUE for origin in origins):
            return origins
        names: dict[nn.Module, str] = {}
        for model_name, model in models:
            for module, named in named_modules(model).items():
                several = (model_name, named.name) if len(models) > 1 else (named.name,)
                names[module] = ".".join(filter(None, several))
        found = first_non_finite_event(self._events, names, where)
        if found is None:
            return origins
        if not replayed or found.phase == "input":
            return (replace(found, advice=DEEP_ADVICE),)
        message = (
            f"{found.message[:-1]}; run eagerly, the model produces none: the compiler is the "
            "cause."
        )
        return (replace(found, message=message, advice=_COMPILER),)
