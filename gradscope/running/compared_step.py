"""Compares a step with the tape of another step.

In a *teacher-forced* step, every call gets the inputs and output gradients of the recorded call. So
the error of its result belongs to this call alone, not to earlier calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gradscope.capture.differences import Difference, difference
from gradscope.running.handover import Part, SharedSamples
from gradscope.running.probed_step import Copies, ProbeKey, StepProbe, Tape, moved
from gradscope.running.rerun import Gradients


@dataclass(kw_only=True)
class Comparison(StepProbe):
    """A comparison of a step with a tape: the errors of all tensors, by the tape's names.

    Attributes:
        tape: the recorded step.
        teacher_forced: replace each tensor by the tape's.
        named: returns the tape's name of a tensor; None if the tape has none.
        parameter: the same for a parameter.
        samples: the samples that both batches have, if the batches differ; only they are compared,
            and for a mean loss, gradients are scaled to the same mean.
        missing: keys with a gradient on the tape, but none in this step.
        summed: keys without an axis of samples, if not all samples are in both batches.
    """

    tape: Tape
    teacher_forced: bool = False
    named: Callable[[ProbeKey], ProbeKey | None] = lambda key: key
    parameter: Callable[[str], str | None] = lambda name: name
    samples: SharedSamples | None = None
    values: dict[ProbeKey, Difference] = field(default_factory=dict)
    gradients: dict[ProbeKey, Difference] = field(default_factory=dict)
    parameters: dict[str, Difference | None] = field(default_factory=dict)
    shapes: dict[ProbeKey, tuple[int, ...]] = field(default_factory=dict)
    missing: set[ProbeKey] = field(default_factory=set)
    summed: set[ProbeKey] = field(default_factory=set)
    _copies: Copies = field(default_factory=Copies)
    _backwards: dict[ProbeKey, int] = field(default_factory=dict)
    _parts: dict[ProbeKey, Part | None] = field(default_factory=dict)
    _share: float | None = None
    _moved: int = 0

    def value(self, key: ProbeKey, tensor: torch.Tensor) -> torch.Tensor:
        """Compare the tensor with the tape's; pass the tape's tensor on if the step is
        teacher-forced."""
        known = self.named(key)
        on_tape = None if known is None else self.tape.values.get(known)
        if known is None or on_tape is None:
            return tensor.detach().clone()
        part = self.samples.part(on_tape, tensor) if self.samples else None
        self._parts[key] = part
        if part is None and self.samples and not self.samples.complete:
            self.summed.add(known)
            return tensor.detach().clone()
        if part is None and on_tape.shape != tensor.shape:
            self.shapes[known] = tuple(tensor.shape)
            return tensor.detach().clone()
        self.values[known] = self._difference(on_tape, tensor, part)
        return self._put(on_tape if self.teacher_forced else tensor.detach(), tensor, part)

    def gradient(self, key: ProbeKey, gradient: torch.Tensor) -> torch.Tensor:
        """Compare the gradient; of several the one with the largest error counts."""
        known = self.named(key)
        on_tape = [] if known is None else self.tape.gradients.get(known, [])
        number = self._backwards.get(key, 0)
        self._backwards[key] = number + 1
        if known is None or number >= len(on_tape):
            return gradient
        ours, part = on_tape[number], self._parts.get(key)
        if part is None and self.samples and not self.samples.complete:
            self.summed.add(known)
            return gradient
        if part is None and ours.shape != gradient.shape:
            return gradient
        if part is not None:
            ours = ours * self._share_of(part.of_a(ours), part.of_b(gradient))
        found = self._difference(ours, gradient, part)
        before = self.gradients.get(known)
        if before is None or before.error < found.error:
            self.gradients[known] = found
        if not (self.teacher_forced or self.noise):
            return gradient
        return self._put(ours if self.teacher_forced else gradient, gradient, part)

    def _share_of(self, ours: torch.Tensor, theirs: torch.Tensor) -> float:
        """Return the factor by which B's gradients are larger: a mean over fewer samples has larger
        ones.

        The first gradient, which is that of the loss, says whether the loss is one.
        """
        if self._share is None:
            assert self.samples is not None
            a, b = self.samples.sizes
            shares = (1.0, a / b)
            self._share = min(shares, key=lambda share: difference(ours * share, theirs).error)
        return self._share

    def end(self, loss: torch.Tensor, parameters: Gradients) -> None:
        """Compare the step's results with the tape's."""
        super().end(loss, parameters)
        self.missing = self.tape.gradients.keys() - self.gradients.keys() - self.summed
        if self.samples and not self.samples.complete:
            return
        for name, gradient in parameters.items():
            known = self.parameter(name)
            if known is not None and known in self.tape.arrived:
                self.parameters[known] = _of_parameters(self.tape.arrived[known], gradient)

    def _difference(
        self, on_tape: torch.Tensor, tensor: torch.Tensor, part: Part | None
    ) -> Difference:
        if part is not None:
            return difference(part.of_a(on_tape), part.of_b(tensor))
        if self._copies.original(tensor) is on_tape:
            return Difference(0.0, None, 0.0)
        return difference(on_tape, tensor)

    def _put(self, original: torch.Tensor, tensor: torch.Tensor, part: Part | None) -> torch.Tensor:
        """Return a copy of the original in the dtype, device and layout of the tensor that it
        replaces."""
        self._moved += 1
        if part is not None and self.teacher_forced:
            original = part.put(part.of_a(original), tensor)
        put = torch.empty_like(tensor, requires_grad=False)
        put.copy_(moved(original, self.noise, seed=(self.draw << 32) + self._moved))
        return self._copies.enter(put, original) if self.teacher_forced and not self.noise else put


def _of_parameters(one: torch.Tensor | None, other: torch.Tensor | None) -> Difference | None:
    """Compare two gradients; None if neither exists, infinite if one is missing."""
    if one is None and other is None:
        return None
    if one is None or other is None or one.shape != other.shape:
        return Difference(math.inf, None, math.inf)
    return difference(*(t.to_dense() if t.layout != torch.strided else t for t in (one, other)))
