"""Probes the calls inside compiled models (``run --compiled``), and collects a step's events.

It also measures the change of step 1's loss by the probes. For this the calls of the models run
again, compiled without probes; the script does not. The change of the loss is computed from the
change of the outputs and the gradients that arrived there: for a change as small as rounding, the
loss changes in proportion.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    without_probes,
)
from gradscope.errors import LayerError, first_line
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.modules import ModuleCall
from gradscope.training.current_step import CurrentStep
from gradscope.training.extra_passes import notices
from gradscope.training.models import Model
from gradscope.training.nan_detector.first_event import first_non_finite_event
from gradscope.training.nan_detector.first_module import DEEP_ADVICE
from gradscope.training.nan_detector.recorded_calls import RecordedCall, tensors_of
from gradscope.training.nan_detector.replayed_calls import as_it_began
from gradscope.typeset.numbers import number


class ProbeShift:
    """The change of a run's first loss by probes.

    Attributes:
        moved: the loss with probes minus the loss without them; None if unknown.

    Args:
        checked: True if a NaN detector records the calls.
    """

    def __init__(self, *, checked: bool) -> None:
        self.moved: float | None = None
        self._loss: float | None = None
        self._why = "no step was made" if checked else "the NaN detector is off"
        self._open = checked
        #: Each output with its version, which is not 0 if compiled code wrote to it.
        self._outputs: dict[RecordedCall, list[tuple[Tensor, int]]] = {}

    def returned(self, call: RecordedCall | None, output: Any) -> None:
        """Note the return of a model's call; nothing is kept after step 1."""
        if self._open and call is not None:
            found = [tensor.detach() for tensor in tensors_of((output,))]
            self._outputs[call] = [(tensor, _version(tensor)) for tensor in found]

    def measure(
        self,
        calls: Sequence[RecordedCall],
        models: Sequence[Model],
        current: CurrentStep,
        *,
        alone: bool,
    ) -> None:
        """Run the calls of step 1 again without probes, before its optimizer steps.

        Args:
            calls: the calls that gradients arrived at.
            models: all trained models.
            current: the current step.
            alone: True if no other process trains with this one.
        """
        if not self._open:
            return
        self._open, self._loss = False, current.loss
        compiled = {model.module: model for model in models if model.compiled}
        chosen = [call for call in calls if call.module in compiled]
        self._why = _refusal(chosen, list(compiled.values()), current, alone=alone)
        if not self._why:
            moved = [self._moved(call, compiled[call.module]) for call in chosen]
            known = [one for one in moved if one is not None]
            if len(known) == len(moved):
                self.moved = math.fsum(known) / (current.scale or 1.0)
        self._outputs.clear()

    def _moved(self, call: RecordedCall, model: Model) -> float | None:
        outer, known = model.outer(), self._outputs.get(call)
        if outer is None or known is None:
            self._why = "the model is gone"
            return None
        ours = [tensor for tensor, _ in known]
        if call.overwritten or call.moved or any(_version(t) != before for t, before in known):
            self._why = "the script writes to the model's inputs, outputs or weights"
            return None
        try:
            plain = _plain_outputs(call, outer)
        except Exception as error:  # of the compiler, or of a script that forbids to compile again
            first = first_line(error)
            self._why = f"without probes the model raised `{type(error).__name__}: {first}`"
            return None
        if [t.shape for t in plain] != [t.shape for t in ours]:
            self._why = "the model's outputs have other shapes when it runs again"
            return None
        edges = [edge for _, edge in call.results]
        return math.fsum(
            _product(gradient, one, other)
            for one, other, edge in zip(ours, plain, edges, strict=True)
            if edge is not None
            for n in range(len(call.nodes.get(edge[0], ())))
            if (gradient := call.gradient_of(edge[1], edge[0], n)) is not None
        )

    def line(self) -> str:
        """Return the result in one line."""
        if self.moved is None:
            return f"--compiled: how far the probes moved the loss is unknown: {self._why}"
        if not self.moved:
            return "--compiled: the probes did not move the loss of step 1"
        size = number(abs(self.moved))
        share = f", {number(abs(self.moved / self._loss))} of it" if self._loss else ""
        return f"--compiled: the probes moved the loss of step 1 by {size}{share}"


def _refusal(
    calls: Sequence[RecordedCall], models: Sequence[Model], current: CurrentStep, *, alone: bool
) -> str:
    """Return the reason why the calls cannot run again; "" if they can."""
    if not models:
        return "the script compiled no model before step 1"
    if not alone:
        return "several processes train together"
    if current.nonfinite is not None:
        return "step 1 has a NaN or Inf"
    if not calls:
        return "the model is compiled in place, or a function is compiled"
    if not all(call.repeatable for call in calls):
        return "the model waits for other processes"
    return next(filter(None, map(notices, (model.module for model in models))), "")


def _plain_outputs(call: RecordedCall, outer: Callable[..., Any]) -> list[Tensor]:
    with (
        _counters_kept(),
        as_it_began(call, compiled=True) as (_, args, kwargs),
        without_probes(),
    ):
        return [tensor.detach() for tensor in tensors_of((outer(*args, **kwargs),))]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def _counters_kept() -> Iterator[None]:
    """Restore PyTorch's counters of compiled graphs after the block: the script may print them."""
    from torch._dynamo.utils import counters

    before = copy.deepcopy(counters)
    try:
        yield
    finally:
        counters.clear()
        counters.update(before)


def _product(gradient: Tensor, one: Tensor, other: Tensor) -> float:
    """Return the change of the loss that a change of an output causes."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    change = one.to(wide) - other.to(wide)
    return float((gradient.to(wide).conj() * change).sum().real)


_COMPILER = "compile with `backend='eager'` and `backend='aot_eager'`, to see which one has it too"

#: Nodes of the loss graph that hide the operations of a compiled model.
_OPAQUE = ("CompiledFunction", "_WithGradient")


class CompiledCalls:
    """Probes the modules of the models that a script compiles, before they are traced.

    Attributes:
        shift: the change of the loss of step 1 by the probes.
        compiled_backward: True if a backward ran under compiled autograd, whose graph gradscope's
            hooks divide.

    Args:
        layers: patterns of the modules to probe.
        guard: makes functions of the probes that never raise.
        checked: True if every step is checked for NaN and Inf.
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
        """Return the notices for the end of the run."""
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
            replayed: True if all calls of the step were replayed, eagerly.
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
