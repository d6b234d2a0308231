"""The histories that rules over time read: the course of a training run in constant memory.

A history holds the time *before* the current step or sample, which is ``now``. The cost of a step
does not grow with the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import NONE, ParameterNorms, unpacked
from gradscope.records.training import StepSample, TrainingStep
from gradscope.records.transformer import PROBES, TransformerCall
from gradscope.rules._course import Blocks
from gradscope.rules._window import KEPT, StepWindows, Window

#: Number of samples that a history keeps.
_SAMPLES = 32


#: Number of lists of names with kept norms: an optimizer has one for each of its models.
_LISTS = 16


@dataclass(frozen=True, slots=True)
class Leap:
    """The parameter with the largest gradient in a step, and the median of its earlier norms."""

    name: str
    norm: float
    usual: float


class NormHistory:
    """The norms of the last steps. A step only stores a reference; ``largest`` reads the
    numbers."""

    __slots__ = ("_now", "_past")

    def __init__(self) -> None:
        self._now: Sequence[tuple[tuple[str, ...], ParameterNorms]] = ()
        self._past: dict[int, deque[ParameterNorms]] = {}

    def joined(self) -> bool:
        """Return True if a parameter has a gradient that had none at the last reading of norms."""
        for names, record in self._now:
            past = self._past.get(record.names)
            if not past:
                return bool(self._past)
            now, before = (one.clipped or one.gradient for one in (record, past[-1]))
            if now and before:
                pairs = zip(unpacked(now, len(names)), unpacked(before, len(names)), strict=True)
                if any(new != NONE and old == NONE for new, old in pairs):
                    return True
        return False

    def add(self, norms: Sequence[tuple[tuple[str, ...], ParameterNorms]]) -> None:
        """Add the norms of the next step, with their names; the earlier ones become history."""
        for _, record in self._now:
            past = self._past.pop(record.names, None)
            self._past[record.names] = past = deque(maxlen=KEPT) if past is None else past
            past.append(record)
            if len(self._past) > _LISTS:
                del self._past[next(iter(self._past))]
        self._now = norms

    def largest(self) -> Leap | None:
        """Return the largest gradient before clipping, if earlier steps have norms of it."""
        found: list[Leap] = []
        for names, record in self._now:
            if record.gradient is None:
                continue
            norms = unpacked(record.gradient, len(names))
            norm, i = max(((x, i) for i, x in enumerate(norms) if math.isfinite(x)), default=(0, 0))
            past = [one.gradient for one in self._past.get(record.names, ())]
            before = [unpacked(one, len(names))[i] for one in past if one is not None]
            known = [x for x in before if 0 <= x < math.inf]
            if norm > 0 and known:
                found.append(Leap(names[i], norm, median_low(known)))
        return max(found, key=lambda leap: leap.norm, default=None)


@dataclass(slots=True)
class StepHistory:
    """The steps of one optimizer.

    Attributes:
        now: the current step; everything else covers the steps before.
        count: the number of steps, including ``now``.
        alone: True if no other optimizer has stepped in the run so far.
        loss: the window of losses of steps with as many backwards as ``now``.
        windows: the losses and the gradient norms of the steps before.
        blocks: the losses since the run began.
        peak: the highest learning rate of any group so far.
        scales: the number of halvings of the loss scale before each of the last steps.
        halvings: their sum.
        norms: the gradient norms of each parameter, in the steps in which they were read.
        pace: the window of the update's root mean square divided by the learning rate.
        taken: the window of the gradient norms that the optimizer got.
        read: the optimizer's last step before ``now`` in which this norm was read.
        rates: the step and the highest learning rate of each of the last steps, including ``now``.
    """

    now: TrainingStep
    count: int = 1
    alone: bool = True
    loss: Window = field(init=False)
    windows: StepWindows = field(default_factory=StepWindows)
    blocks: Blocks = field(default_factory=Blocks)
    peak: float = 0.0
    scales: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    halvings: float = 0.0
    norms: NormHistory = field(default_factory=NormHistory)
    pace: Window = field(default_factory=Window)
    taken: Window = field(default_factory=Window)
    read: int = 0
    rates: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def __post_init__(self) -> None:
        self.loss = self.windows.losses(len(self.now.summed_losses))
        self._look(self.now, None)

    @property
    def gradient(self) -> Window:
        """The window of the gradient norms before clipping."""
        return self.windows.gradient

    def add(self, step: TrainingStep, *, alone: bool = True) -> None:
        """Add the next step; the current one becomes history."""
        before, self.now = self.now, step
        self.count += 1
        self.alone = alone
        loss = before.loss
        self.windows.add(loss, len(before.summed_losses), before.gradient_norm)
        self.loss = self.windows.losses(len(step.summed_losses))
        self.taken.add(before.clipped_norm)
        if before.clipped_norm is not None:
            self.read = before.optimizer_step
        self.pace.add(pace_of(before))
        self.blocks.add(before.step, loss)
        self._look(step, before)

    def _look(self, step: TrainingStep, before: TrainingStep | None) -> None:
        """Update the facts that count at the step itself."""
        for rate in step.learning_rates:
            if self.peak < rate < math.inf:
                self.peak = rate
        if step.learning_rates:
            self.rates.append((step.step, max(step.learning_rates)))
        if before is not None:
            self._scaled(before.loss_scale, step.loss_scale)

    def skip(self, step: TrainingStep) -> None:
        """Add a step that a gradient scaler skipped: only its number and loss scale count."""
        self._scaled(self.now.loss_scale, step.loss_scale)
        self.now = replace(self.now, step=step.step, loss_scale=step.loss_scale)

    def _scaled(self, before: float | None, after: float | None) -> None:
        if after is None:
            return
        if len(self.scales) == KEPT:
            self.halvings -= self.scales[0]
        self.scales.append(_halvings(before, after))
        self.halvings += self.scales[-1]


def pace_of(step: TrainingStep) -> float | None:
    """Return the root mean square of a step's update divided by its learning rate."""
    rate, moved = max(step.learning_rates, default=0.0), step.update_rms
    return moved / rate if moved is not None and math.isfinite(moved) and rate > 0 else None


def _halvings(before: float | None, after: float) -> float:
    if before is None or not 0 < after < before < math.inf:
        return 0.0
    return math.log2(before) - math.log2(after)


class ParameterHistory:
    """One weight: ``now``, and its norm, its gradient and its update in the samples before.

    ``first`` is its norm in the first sample that has it, at the step ``since``; ``pace`` is the
    highest median of its update ratio so far; ``woke`` is the number of times that it moved again
    after a pause.
    """

    __slots__ = ("first", "gradient", "now", "pace", "rests", "since", "update", "value", "woke")

    def __init__(self, now: ParameterStats) -> None:
        self.now = now
        self.first: float | None = None
        self.since = 0
        self.pace = 0.0
        self.rests = False
        self.woke = 0
        self.value, self.gradient, self.update = (Window(_SAMPLES) for _ in range(3))

    def settle(self, step: int) -> None:
        """Add the current step to the history."""
        norm = self.now.value.norm
        if self.first is None and norm and math.isfinite(norm):
            self.first, self.since = norm, step
        self.value.add(norm)
        self.gradient.add(self.now.gradient.norm if self.now.gradient is not None else None)
        self.update.add(self.now.update_ratio)
        self.pace = max(self.pace, self.update.usual)
        rests = self.now.moved is False
        self.woke += self.rests and not rests
        self.rests = rests


@dataclass(slots=True)
class PartHistory:
    """One attention, routing or residual block: ``now``, and its ``first`` record.

    ``count`` is the number of samples with it, including ``now``.
    """

    kind: str
    now: TransformerCall
    first: TransformerCall
    count: int = 1


class SampleHistory:
    """The samples of one model in the steps of one optimizer.

    ``now`` is the current sample. ``weights`` are its trainable weights of two or more axes that
    the optimizer holds, with their history. ``steps`` has the steps of the earlier samples.
    ``parts`` are the attentions, routings and residual blocks of the current sample. ``loss`` is
    the loss of the first sample with one.
    """

    def __init__(self) -> None:
        self.now: StepSample | None = None
        self.count = 0
        self.steps: deque[int] = deque(maxlen=_SAMPLES)
        self.weights: dict[str, ParameterHistory] = {}
        self.parts: list[PartHistory] = []
        self.loss: float | None = None
        self._known: dict[str, ParameterHistory] = {}
        self._parts: dict[tuple[str, str, int, int], PartHistory] = {}

    def add(self, sample: StepSample) -> None:
        """Add the next sample; the current one becomes history."""
        if self.now is not None:
            for weight in self.weights.values():
                weight.settle(self.now.step)
            self.steps.append(self.now.step)
        self.now = sample
        self.count += 1
        if self.loss is None:
            self.loss = sample.report.loss
        self.parts = [self._part(kind, c) for kind in PROBES for c in getattr(sample.report, kind)]
        self.weights = {}
        for stats in sample.report.parameters:
            if stats.in_optimizer is False or not stats.requires_grad:
                continue
            if sum(size > 1 for size in stats.shape) < 2:
                continue
            known = self._known.get(stats.name)
            if known is None:
                known = self._known[stats.name] = ParameterHistory(stats)
            known.now = stats
            self.weights[stats.name] = known

    def _part(self, kind: str, call: TransformerCall) -> PartHistory:
        key = (kind, call.name, call.call, call.part)
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = PartHistory(kind, call, call)
        else:
            known.now = call
            known.count += 1
        return known
