"""Measures by how much probes change the loss of step 1: it runs the forward again, compiled
without probes.

The calls of the models run again, not the script. The change of the loss is computed from the
change of their outputs and the gradients that arrived there: for a change as small as rounding, the
loss changes in proportion.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradscope.capture.traced_probes import without_probes
from gradscope.errors import message_of
from gradscope.training.current_step import CurrentStep
from gradscope.training.extra_passes import notices
from gradscope.training.models import Model
from gradscope.training.nan_detector.recorded_calls import RecordedCall, tensors_of
from gradscope.training.nan_detector.replayed_calls import as_it_began
from gradscope.typeset.numbers import number


class ProbeShift:
    """The change of a run's first loss by probes.

    Attributes:
        moved: the loss with probes minus the loss without them; None if unknown.

    Args:
        checked: whether a NaN detector records the calls.
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
            first = (message_of(error) or type(error).__name__).splitlines()[0]
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
        """The result in one line."""
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
