"""Compares two workloads: how far B is from A overall, and in each call alone.

A is recorded once. B runs free-running, for the errors that a user sees, and teacher-forced, for
each call's own error. A run of A, teacher-forced by A itself with each number's last bit changed,
gives the noise: where a sum amplifies rounding, this run shows it too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import nn

from gradscope import progress
from gradscope.capture.differences import Difference, difference
from gradscope.comparison.alignment import CallKey, Renaming, align_calls
from gradscope.errors import OptionError
from gradscope.loading.workload import Workload
from gradscope.running.handover import Part, SharedSamples, hand_batch
from gradscope.running.probed_step import Copies, ProbeKey, StepProbe, Tape, moved, probed_step
from gradscope.running.rerun import Gradients, PlainCall, PlainStep, StepFailed, plain_step


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
        """Compare the gradient; if there are several, the largest error counts."""
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

        The first gradient, that of the loss, shows if the loss is a mean.
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


@dataclass(frozen=True, slots=True)
class Reference:
    """Two runs compared with a third, all by A's names.

    Attributes:
        a: The reference compared with A as it is.
        own: The reference compared with A, where A's calls get the reference's inputs.
        b: The reference compared with B as it is.
    """

    a: Comparison
    own: Comparison
    b: Comparison


def in_float64(workload: Workload) -> Workload:
    """Return a copy of a workload that computes in float64, on the same batch.

    Raises:
        OptionError: the model cannot be copied, or its device has no float64.
    """
    if workload.device.type == "mps":
        raise OptionError("`mps` has no float64", help="run the reference with `--device cpu`")
    try:
        model, criterion = copy.deepcopy((workload.model, workload.criterion))
    except Exception as failure:
        name = type(failure).__name__
        raise OptionError(
            f"the model cannot be copied for a reference: `copy.deepcopy` raised {name}",
            help="leave `--reference` away",
        ) from failure
    if isinstance(criterion.spec, nn.Module):
        criterion.spec.double()
    wide = replace(
        workload,
        model=model.double(),
        criterion=criterion,
        dtype=torch.float64,
        autocast=None,
    )
    hand_batch(workload, wide)
    return wide


#: Number of steps that measure the noise.
DRAWS = 2
#: Number of last bits by which the gradients of two equal runs may differ in total.
_ROUNDING = 100
_UNPROBEABLE = "it fails if the tensors between its calls are copied, which a comparison needs"
_Probe = TypeVar("_Probe", bound=StepProbe)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Result of comparing two runs.

    Attributes:
        calls: The calls of A and of B, by key.
        aligned: The key in A of each key in B.
        tape: Tape of A's run.
        free_running: Comparison of A with B as it is.
        teacher_forced: Comparison of A with B, where B's calls get A's inputs.
        noise: Comparison of A with itself, each input number moved by the share ``step``.
        doubt: Comparison of A with itself, each number moved by its last bit.
        samples: Those that both batches have, if the batches differ.
        reference: Distance of A and of B from a run in higher precision.
    """

    calls: tuple[dict[CallKey, PlainCall], dict[CallKey, PlainCall]]
    aligned: dict[CallKey, CallKey]
    tape: Tape
    free_running: Comparison
    teacher_forced: Comparison
    noise: tuple[Comparison, ...]
    doubt: Comparison
    step: float
    notices: tuple[str, ...] = ()
    samples: SharedSamples | None = None
    reference: Reference | None = None


def diverge(
    a: Workload,
    b: Workload,
    parameters: Mapping[str, str],
    renamings: Sequence[Renaming] = (),
    samples: SharedSamples | None = None,
    wide: Workload | None = None,
) -> Divergence:
    """Run both, several times; the state of each is restored.

    Args:
        a: The recorded run.
        b: The run compared with it.
        parameters: A's parameters by the names in B.
        renamings: The user's own pairs of names.
        samples: Those that both batches have, if the batches differ.
        wide: A in a wider dtype. The distance of A's calls from its calls counts as noise, too.
    """
    with progress.within("A"):
        plain_a = plain_step(a)
        tape, unprobed_a, remarks_a = harmless_step(a, plain_a, Tape, "A")
    with progress.within("B"):
        plain_b = plain_step(b)
        aligned = align_calls(_alike(plain_a), _alike(plain_b), renamings)
        names = _Names(tape, aligned)

        def held(*, teacher_forced: bool = False, tape: Tape = tape) -> Comparison:
            return Comparison(
                tape=tape,
                teacher_forced=teacher_forced,
                named=names.of,
                parameter=parameters.get,
                samples=samples,
            )

        free_running, unprobed_b, remarks_b = harmless_step(b, plain_b, held, "B")
        teacher_forced = held(teacher_forced=True)
        probed_step(b, teacher_forced, unprobed_b)
    step = max(last_bit(a), last_bit(b))
    with progress.within("noise of A"):
        noise = tuple(
            Comparison(tape=tape, teacher_forced=True, noise=step, draw=n) for n in range(DRAWS)
        )
        for one in noise:
            probed_step(a, one, unprobed_a)
        doubt = Comparison(tape=tape, noise=last_bit(a))
        probed_step(a, doubt, unprobed_a)
    reference = None
    if wide is not None:
        with progress.within("reference"):
            exact, _, _ = harmless_step(wide, plain_step(wide), Tape, "the reference")
            reference = Reference(
                a=Comparison(tape=exact),
                own=Comparison(tape=exact, teacher_forced=True),
                b=held(tape=exact),
            )
            probed_step(a, reference.a, unprobed_a)
            probed_step(a, reference.own, unprobed_a)
            probed_step(b, reference.b, unprobed_b)
            noise = (*noise, reference.own)
    calls = plain_a.calls, plain_b.calls
    remarks = (*remarks_a, *remarks_b)
    runs = free_running, teacher_forced, noise, doubt
    return Divergence(calls, aligned, tape, *runs, step, remarks, samples, reference)


def _alike(plain: PlainStep) -> dict[CallKey, tuple[object, ...]]:
    """Return the features of each call by which calls are aligned."""
    return {key: (call.leaf, call.shapes) for key, call in plain.calls.items()}


def harmless_step(
    workload: Workload,
    plain: PlainStep,
    begin: Callable[[], _Probe],
    whose: str,
    number: int = 0,
) -> tuple[_Probe, frozenset[CallKey], list[str]]:
    """Run a step with probes that leave its gradients unchanged.

    A call that writes to its argument must not get a copy, if its caller reads the argument again:
    such calls have no probes if it makes a difference.

    Returns:
        What the probe recorded, the calls whose arguments have no probes, and notices.
    """
    writers = frozenset(key for key, call in plain.calls.items() if call.writes)
    found = {}
    for unprobed in dict.fromkeys((frozenset[CallKey](), writers)):
        probe = begin()
        try:
            probed_step(workload, probe, unprobed, number)
        except Exception as failure:
            if unprobed or not writers:
                raise StepFailed(workload, "forward", _UNPROBEABLE) from failure
            continue
        off = _off(plain.parameters, probe.arrived)
        if off <= _ROUNDING * last_bit(workload):
            return probe, unprobed, []
        found[unprobed] = probe, off
    unprobed, (probe, off) = min(found.items(), key=lambda item: item[1][1])
    say = f"{whose} is not deterministic: a second run's gradients differ by {off:.1e}"
    return probe, unprobed, [say]


def _off(one: Gradients, other: Gradients) -> float:
    """Return the relative L2 error over all gradients."""
    errors, norms = [0.0], [0.0]
    for name, gradient in one.items():
        again = other[name]
        if gradient is None or again is None:
            if gradient is not again:
                return math.inf
            continue
        found = difference(gradient, again)
        norm = float(torch.linalg.vector_norm(gradient.double()))
        errors.append(found.error * norm if norm else found.largest)
        norms.append(norm)
    return math.hypot(*errors) / (math.hypot(*norms) or 1.0)


def last_bit(workload: Workload) -> float:
    """Return the distance between neighbouring numbers of a run's dtype, as a share of the
    number."""
    dtypes = [workload.dtype, *([workload.autocast] if workload.autocast else [])]
    return max(torch.finfo(dtype).eps for dtype in dtypes)


class _Names:
    """Maps each probed tensor of B to A's name."""

    def __init__(self, tape: Tape, aligned: Mapping[CallKey, CallKey]) -> None:
        self._tape, self._calls = tape, aligned
        self._alone: dict[tuple[str, int, bool], ProbeKey | None] = {}
        for key in tape.values:
            place = key.name, key.call, key.output
            self._alone[place] = None if place in self._alone else key
        self._taken: dict[ProbeKey, ProbeKey] = {}

    def of(self, key: ProbeKey) -> ProbeKey | None:
        """Return the same path in A's call; if that has a single tensor, it is the counterpart of
        B's first."""
        call = self._calls.get((key.name, key.call))
        if call is None:
            return None
        known: ProbeKey | None = ProbeKey(*call, key.output, key.path)
        if known not in self._tape.values:
            known = self._alone.get((*call, key.output))
        return known if known and self._taken.setdefault(known, key) == key else None
