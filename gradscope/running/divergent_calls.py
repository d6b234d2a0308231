"""Finds the calls where B diverges: their own error exceeds the noise, forward or backward.

Compiled models have no hooks inside: their outputs and parameter gradients are compared, and their
calls by the probes of ``compiled_step.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradscope.capture.differences import Difference, difference
from gradscope.comparison.alignment import CallKey
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.running.compared_runs import DRAWS, Comparison, Divergence, harmless_step, last_bit
from gradscope.running.compiled_step import CompiledComparison, Errors
from gradscope.running.probed_step import ProbeKey, Tape, probed_step
from gradscope.running.rerun import (
    Gradients,
    LossRecorder,
    StepFailed,
    gradients_of,
    plain_step,
    rerun,
)
from gradscope.running.step import GraphRoot, Step

#: A call diverges if its own error is this many times the noise; a scale, at half of that.
#: Reordered sums, other kernels, memory formats and numbers of threads came to 4.5 and to 1.6 at
#: the most, on ResNet-18, a ViT and a small GPT-2 in float32.
FACTOR = 16.0
#: A tensor that only one run has is off by any measure.
_NO_NUMBER = Difference(math.inf, None, math.inf)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of A: its error if each number changes by its last bit."""

    error: float
    scale: float

    @classmethod
    def of(cls, draws: Sequence[Difference | None], step: float) -> Noise:
        """Return the largest of several noises, but at least the size of the changes that made
        them."""
        found = [one for one in draws if one is not None]
        return cls(
            max(step, *(one.error for one in found), 0.0),
            max(step, *(abs(one.scale) for one in found), 0.0),
        )

    def limit(self, own: Difference) -> tuple[float, float]:
        """Return the measure of a difference, error or scale, that is farthest above its limit, and
        that limit.

        Rounding goes both ways and partly cancels in the scale, so the scale's limit has half the
        factor.
        """
        error, scale = (own.error, FACTOR * self.error), (abs(own.scale), FACTOR / 2 * self.scale)
        return max(error, scale, key=lambda pair: pair[0] / pair[1])

    def exceeded(self, own: Difference) -> bool:
        """Return True if the difference exceeds the noise."""
        value, limit = self.limit(own)
        return value > limit


@dataclass(frozen=True, slots=True)
class DivergentCall:
    """A place in B that computes another result than A from the same input.

    Attributes:
        call: the place; None is the loss.
        own: its own difference, and ``noise`` that of A.
        beside: a call inside ``call``; the place is the code of ``call`` right before or after it.
        before: True if it is right before.
        parameter: the parameter, if its gradient diverges.
        batch: True if B's model gets another input.
    """

    call: CallKey | None
    own: Difference
    noise: Noise
    beside: CallKey | None = None
    before: bool = False
    parameter: str | None = None
    batch: bool = False


def divergent_calls(found: Divergence) -> tuple[list[DivergentCall], list[DivergentCall]]:
    """Return the divergent calls of forward in order, and those of backward from the loss on."""
    return _forward(found), _backward(found)


def value_noise(found: Divergence, key: ProbeKey) -> Noise:
    """Return the noise of a call's input or output."""
    return Noise.of([one.values.get(key) for one in found.noise], found.step)


def gradient_noise(found: Divergence, key: ProbeKey) -> Noise:
    """Return the noise of a gradient."""
    return Noise.of([one.gradients.get(key) for one in found.noise], found.step)


def parameter_noise(found: Divergence, name: str) -> Noise:
    """Return the noise of a parameter's gradient."""
    return Noise.of([one.parameters.get(name) for one in found.noise], found.step)


def _forward(found: Divergence) -> list[DivergentCall]:
    places = []
    for key in found.tape.values:
        other = key in found.teacher_forced.shapes
        own, noise = found.teacher_forced.values.get(key), value_noise(found, key)
        if other or (own is not None and noise.exceeded(own)):
            places.append(_forward_place(found, key, own or _NO_NUMBER, noise))
    if found.samples and not found.samples.complete:
        return places  # a loss of other samples
    if found.tape.loss.shape != found.teacher_forced.loss.shape:
        return [*places, DivergentCall(None, _NO_NUMBER, Noise(found.step, found.step))]
    own = difference(found.tape.loss, found.teacher_forced.loss)
    noise = Noise.of([difference(found.tape.loss, one.loss) for one in found.noise], found.step)
    return [*places, DivergentCall(None, own, noise)] if noise.exceeded(own) else places


def _backward(found: Divergence) -> list[DivergentCall]:
    events: list[tuple[float, DivergentCall]] = []
    order: dict[str, int] = {}
    for number, key in enumerate(found.tape.gradients):
        order.setdefault(key.name, number)
        own, noise = found.teacher_forced.gradients.get(key, _NO_NUMBER), gradient_noise(found, key)
        if noise.exceeded(own) and _aligned(found, key):
            events.append((number, _backward_place(found, key, own, noise)))
    for name, error in found.teacher_forced.parameters.items():
        noise = parameter_noise(found, name)
        if error is not None and noise.exceeded(error):
            owner = _owner(found, name)
            at = order.get(owner[0], len(found.tape.gradients)) + 0.5
            events.append((at, DivergentCall(owner, error, noise, parameter=name)))
    return [divergence for _, divergence in sorted(events, key=lambda event: event[0])]


def _aligned(found: Divergence, key: ProbeKey) -> bool:
    """Return True if B has the tensor; without a call of its module nothing can arrive."""
    return key in found.teacher_forced.values and key not in found.teacher_forced.summed


def _forward_place(
    found: Divergence, key: ProbeKey, own: Difference, noise: Noise
) -> DivergentCall:
    call = found.calls[0][key.name, key.call]
    if key.output:
        inside = _inside(found, call.key)
        return DivergentCall(call.key, own, noise, inside[-1] if inside else None)
    if call.parent is None:
        return DivergentCall(call.key, own, noise, batch=True)
    return DivergentCall(call.parent, own, noise, call.key, before=True)


def _backward_place(
    found: Divergence, key: ProbeKey, own: Difference, noise: Noise
) -> DivergentCall:
    call = found.calls[0][key.name, key.call]
    if key.output and call.parent is None:
        return DivergentCall(None, own, noise)
    if key.output:
        return DivergentCall(call.parent, own, noise, call.key)
    inside = _inside(found, call.key)
    return DivergentCall(call.key, own, noise, inside[0] if inside else None, before=True)


def _inside(found: Divergence, parent: CallKey) -> list[CallKey]:
    """Return the calls that a call makes directly, in order."""
    return [key for key, call in found.calls[0].items() if call.parent == parent]


def _owner(found: Divergence, parameter: str) -> CallKey:
    """Return the call of the module that owns the parameter, or of the nearest module around it
    that was called."""
    name = parameter.rpartition(".")[0]
    while name and (name, 0) not in found.calls[0]:
        name = name.rpartition(".")[0]
    return (name, 0) if (name, 0) in found.calls[0] else next(iter(found.calls[0]))


def is_compiled(workload: Workload) -> bool:
    """Return True if the model or a part of it runs compiled, where a step calls it."""
    return (workload.compiled is not None and workload.method is None) or any(
        type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None
        for m in workload.model.modules()
    )


@dataclass(kw_only=True)
class _OutputRecorder(LossRecorder):
    """Keeps the model's output, too."""

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)

    def root(self, step: Step, output: Any) -> GraphRoot:
        """Keep the output's tensors by their paths."""
        self.outputs = {path: t.detach().clone() for path, t in find(output, torch.Tensor)}
        return super().root(step, output)


References = tuple[Difference | None, Difference | None]


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """One tensor of A, B's error in it, and the noise of A; a diff of None is a tensor of A only.
    ``references`` are the errors of A and of B from a run of A in float64, if there is one."""

    tensor: torch.Tensor
    diff: Difference | None
    noise: Noise
    references: References = (None, None)

    @property
    def diverges(self) -> bool:
        """True if the difference exceeds the noise."""
        return self.diff is None or self.noise.exceeded(self.diff)


@dataclass(frozen=True, slots=True)
class OutputsDivergence:
    """Differences of two steps: outputs by path, gradients by A's names, and the losses.

    ``step`` is the relative change of each number for the noise. ``kernels`` are the lines of
    generated code that computed the divergent gradients, if known.
    """

    outputs: dict[str, OutputDiff]
    parameters: dict[str, OutputDiff]
    losses: tuple[torch.Tensor, torch.Tensor]
    step: float
    calls: dict[ProbeKey, InsideDiff] = field(default_factory=dict)
    kernels: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InsideDiff:
    """An input or an output of a call inside compiled B, and an output's gradient, if any arrived.

    ``kernels`` are the lines of generated code that computed the two, if known. ``readers`` are
    the innermost calls that take the output as input; None for the model's result.
    """

    value: OutputDiff
    gradient: OutputDiff | None
    kernels: tuple[str | None, str | None]
    readers: tuple[CallKey, ...] | None


def compare_outputs(
    a: Workload, b: Workload, parameters: dict[str, str], wide: Workload | None = None
) -> OutputsDivergence:
    """Run both, compiled or not; the state of each is restored.

    The noise comes from A run eagerly, twice, with each number moved by its last bit.

    Args:
        a: the reference.
        b: the workload that is compared with it.
        parameters: A's by B's.
        wide: A in a wider dtype, from which the errors of both are reported.

    Raises:
        StepFailed: one of them raised.
    """
    tape, unprobed, _ = harmless_step(a, plain_step(a), Tape, "A")
    exact = Tape()
    if wide is not None:
        exact, _, _ = harmless_step(wide, plain_step(wide), Tape, "the reference")
    inside = CompiledComparison(Errors(tape), None if wide is None else Errors(exact))
    probed = is_compiled(b)
    with inside.observing(b.model) if probed else nullcontext():
        other = _outputs(b)
    one = _outputs(a)
    step = max(last_bit(a), last_bit(b))
    draws = [Comparison(tape=tape, noise=step, draw=n) for n in range(DRAWS)]
    for draw in draws:
        probed_step(a, draw, unprobed)
    eager = Comparison(tape=exact)
    if wide is not None and probed:
        probed_step(a, eager, unprobed)
    theirs = {known: other.gradients[name] for name, known in parameters.items()}
    gradients = {
        name: _diff(
            gradient,
            theirs.get(name),
            step,
            [draw.parameters.get(name) for draw in draws],
            exact.arrived.get(name),
        )
        for name, gradient in one.gradients.items()
        if gradient is not None and name in theirs
    }
    return OutputsDivergence(
        outputs={
            path: _diff(
                tensor,
                other.outputs.get(path),
                step,
                [draw.values.get(ProbeKey("", 0, True, path)) for draw in draws],
                exact.values.get(ProbeKey("", 0, True, path)),
            )
            for path, tensor in one.outputs.items()
        },
        parameters=gradients,
        losses=(one.loss, other.loss),
        step=step,
        calls=dict(_inside_calls(inside, eager, draws, step)),
        kernels={
            name: inside.parameter_kernel(name) for name, one in gradients.items() if one.diverges
        },
    )


def _inside_calls(
    inside: CompiledComparison, eager: Comparison, draws: Sequence[Comparison], step: float
) -> Iterator[tuple[ProbeKey, InsideDiff]]:
    """Yield the inputs and outputs of the calls in the order of execution."""
    tape, wide = inside.own.tape, inside.reference or Errors(Tape())
    known_as: dict[int, list[ProbeKey]] = {}
    for key, tensor in tape.values.items():
        known_as.setdefault(id(tensor), []).append(key)
    for key, own in inside.own.values.items():
        noise = Noise.of([draw.values.get(key) for draw in draws], step)
        gradient, known = inside.own.gradients.get(key), tape.gradients.get(key)
        back = None
        if gradient is not None and known:
            noise_back = Noise.of([draw.gradients.get(key) for draw in draws], step)
            errors = eager.gradients.get(key), wide.gradients.get(key)
            back = OutputDiff(known[-1], gradient, noise_back, errors)
        yield (
            key,
            InsideDiff(
                OutputDiff(
                    tape.values[key], own, noise, (eager.values.get(key), wide.values.get(key))
                ),
                back,
                (inside.kernel(key, gradient=False), inside.kernel(key, gradient=True)),
                _readers(known_as[id(tape.values[key])]),
            ),
        )


def _readers(places: Sequence[ProbeKey]) -> tuple[CallKey, ...] | None:
    """Return the innermost calls that take a tensor as input, from all of its places."""
    calls = dict.fromkeys((place.name, place.call) for place in places if not place.output)
    if not calls and any(not place.name for place in places):
        return None
    return tuple(
        call for call in calls if not any(other.startswith(f"{call[0]}.") for other, _ in calls)
    )


@dataclass(frozen=True, slots=True)
class _Outputs:
    outputs: dict[str, torch.Tensor]
    loss: torch.Tensor
    gradients: Gradients


def _outputs(workload: Workload) -> _Outputs:
    observer = _OutputRecorder()
    try:
        with rerun(replace(workload, as_compiled=True), observer=observer) as step:
            step.compute_gradients()
            return _Outputs(observer.outputs, observer.loss, gradients_of(workload.model))
    except Exception as failure:
        raise StepFailed(workload, observer.phase) from failure


def _diff(
    a: torch.Tensor,
    b: torch.Tensor | None,
    step: float,
    draws: Sequence[Difference | None],
    exact: torch.Tensor | None,
) -> OutputDiff:
    references = _between(exact, a), _between(exact, b)
    return OutputDiff(a, _between(a, b), Noise.of(draws, step), references)


def _between(one: torch.Tensor | None, other: torch.Tensor | None) -> Difference | None:
    if one is None or other is None or one.shape != other.shape:
        return None
    return difference(one, other)
