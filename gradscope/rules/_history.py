"""What rules over time read: the course of a training run, kept short whatever its length.

A history holds what came *before* the step or sample that is now looked at, which is ``now``. The
cost of a step does not grow with the run.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from gradscope.records.modules import ParameterStats
from gradscope.records.training import StepSample, TrainingStep

#: A normal distribution's standard deviation over its median absolute deviation.
_SIGMA = 1.4826
#: Values of a series that are kept, and after how many new ones their statistics are taken again.
_KEPT, _FRESH = 128, 16
#: One value in so many may be an outlier itself.
_OUTLIERS = 50
#: Of a parameter over samples.
_KEPT_SAMPLES = 32
#: Blocks of steps that the course of a loss is kept in; two become one when there are more.
_BLOCK, _BLOCKS, _FEWEST = 16, 64, 16
#: A gradient that was clipped is smaller than it was by more than rounding.
_CLIPPED = 1 - 1e-3
#: The largest factor that is kept, of a gradient clipped to nothing.
_MOST = 1e30


class Window:
    """The last values of a series, with robust statistics of them.

    ``usual`` is their median and ``spread`` their median absolute deviation, as a standard
    deviation; ``factor`` is the same of their logarithms, None where one is not above 0. ``high``
    is the highest of them but for one in fifty, ``count`` how many there ever were. All but this
    are taken again after every few values.
    """

    __slots__ = ("count", "factor", "high", "spread", "usual", "values")

    def __init__(self, kept: int = _KEPT) -> None:
        self.values: deque[float] = deque(maxlen=kept)
        self.count = 0
        self.usual = self.spread = self.high = 0.0
        self.factor: float | None = None

    def add(self, value: float | None) -> None:
        """Take a value in; what is not a finite number is left out."""
        if value is None or not math.isfinite(value):
            return
        self.values.append(value)
        self.count += 1
        if self.count < _FRESH or self.count % _FRESH == 0:
            self._refresh()

    def _refresh(self) -> None:
        ordered = sorted(self.values)
        self.high = ordered[-1 - len(ordered) // _OUTLIERS]
        self.usual = usual = _middle(ordered)
        self.spread = _SIGMA * _middle(sorted([abs(value - usual) for value in ordered]))
        self.factor = None
        if ordered[0] > 0:
            log, center = math.log, math.log(usual)
            self.factor = _SIGMA * _middle(sorted([abs(log(v) - center) for v in ordered]))

    def deviations(self, value: float, floor: float) -> float:
        """How many standard deviations a value lies above the median, by their logarithms.

        Noise is a share of what it is the noise of, and its tails are long: so is a loss's.
        ``floor`` is the least deviation that is believed; without logarithms it is a plain one.
        """
        if self.factor is not None and value > 0:
            return (math.log(value) - math.log(self.usual)) / max(self.factor, floor)
        spread = max(self.spread, floor * abs(self.usual))
        return (value - self.usual) / spread if spread > 0 else 0.0


def _middle(ordered: list[float]) -> float:
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else ordered[half - 1] / 2 + ordered[half] / 2


@dataclass(slots=True)
class Block:
    """Steps in a row: the first and the last number, and the mean and the spread of the loss."""

    first: int
    last: int
    count: int
    mean: float
    #: Sum of squared differences from the mean.
    squares: float

    def add(self, step: int, value: float) -> None:
        """One step more (Welford)."""
        self.last, self.count = step, self.count + 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)

    def joined(self, other: Block) -> Block:
        """Both as one."""
        count = self.count + other.count
        apart = other.mean - self.mean
        return Block(
            self.first,
            other.last,
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
        )


@dataclass(frozen=True, slots=True)
class Course:
    """A loss over the run: the mean of its first steps, and of its third and its last quarter.

    ``error`` is the standard error of the difference of these two, ``spread`` the deviation of
    single steps from the mean of their block, ``lowest`` the least mean of a block. Together they
    are of ``steps`` steps, from ``since`` on.
    """

    first: float
    middle: float
    last: float
    error: float
    spread: float
    lowest: float
    since: int
    steps: int


@dataclass(slots=True)
class StepHistory:
    """The steps of one optimizer.

    Attributes:
        now: the step that is looked at; everything else is of those before it.
        count: how many steps there were, ``now`` included.
        alone: whether no other optimizer has stepped in the run so far.
        loss, gradient: of the losses and of the norms of the gradient before clipping.
        course: of the loss since the run began, None in its first blocks.
        clipped: by what factor steps were clipped, 1 where they were not, with ``now``.
        shortened: how many of those that are kept are above 1.
        peak: the highest learning rate of any group so far.
        scales: by how many halvings the loss scale fell before each of the last steps.
        halvings: their sum.
    """

    now: TrainingStep
    count: int = 1
    alone: bool = True
    loss: Window = field(default_factory=Window)
    gradient: Window = field(default_factory=Window)
    course: Course | None = None
    clipped: Window = field(default_factory=Window)
    shortened: int = 0
    peak: float = 0.0
    scales: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    halvings: float = 0.0
    _blocks: list[Block] = field(default_factory=list)
    _size: int = _BLOCK

    def __post_init__(self) -> None:
        self._look(self.now, None)

    def add(self, step: TrainingStep, *, alone: bool = True) -> None:
        """The next step is looked at; the one before it becomes history."""
        before, self.now = self.now, step
        self.count += 1
        self.alone = alone
        loss = before.loss
        self.loss.add(loss)
        self.gradient.add(before.gradient_norm)
        if loss is not None and math.isfinite(loss) and abs(loss) < 1e150:
            self._take(before.step, loss)
        self._look(step, before)

    def _look(self, step: TrainingStep, before: TrainingStep | None) -> None:
        """What of the step itself counts at once."""
        for rate in step.learning_rates:
            if self.peak < rate < math.inf:
                self.peak = rate
        norm, clipped = step.gradient_norm, step.clipped_norm
        if norm is not None and clipped is not None and math.isfinite(norm):
            known = self.clipped.values
            if len(known) == _KEPT and known[0] > 1:
                self.shortened -= 1
            by = min(norm / clipped, _MOST) if 0 < clipped < norm * _CLIPPED else 1.0
            self.clipped.add(by)
            self.shortened += by > 1
        if step.loss_scale is not None and before is not None:
            if len(self.scales) == _KEPT:
                self.halvings -= self.scales[0]
            fell = _halvings(before.loss_scale, step.loss_scale)
            self.scales.append(fell)
            self.halvings += fell

    def _take(self, step: int, loss: float) -> None:
        """A loss into its block; a block that is full changes the course."""
        blocks = self._blocks
        if blocks and blocks[-1].count < self._size:
            blocks[-1].add(step, loss)
            return
        if len(blocks) == _BLOCKS:
            blocks[:] = [a.joined(b) for a, b in zip(blocks[::2], blocks[1::2], strict=True)]
            self._size *= 2
        if len(blocks) >= _FEWEST:
            self.course = _course(blocks)
        blocks.append(Block(step, step, 1, loss, 0.0))


def _course(blocks: list[Block]) -> Course:
    quarter = len(blocks) // 4
    middle, last = blocks[-2 * quarter : -quarter], blocks[-quarter:]
    both = [block.mean for block in (*middle, *last)]
    # Neighbouring steps are alike: the noise of a quarter is that of its blocks.
    halves = (_mean([b.mean for b in middle]), _mean([b.mean for b in last]))
    noise = [b.mean - halves[0] for b in middle] + [b.mean - halves[1] for b in last]
    freedom = max(1, len(noise) - 2)
    variance = sum(value**2 for value in noise) / freedom
    late = [*middle, *last]
    return Course(
        first=blocks[0].mean,
        middle=halves[0],
        last=halves[1],
        error=math.sqrt(2 * variance / quarter),
        spread=math.sqrt(sum(b.squares for b in late) / max(1, sum(b.count for b in late))),
        lowest=min(both),
        since=middle[0].first,
        steps=sum(b.count for b in late),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _halvings(before: float | None, after: float) -> float:
    if before is None or not 0 < after < before < math.inf:
        return 0.0
    return math.log2(before) - math.log2(after)


class ParameterHistory:
    """One weight: ``now``, and over the samples before its norm, its gradient's and its update.

    ``first`` is its norm in the first sample in which it had one, at the step ``since``; ``pace``
    the highest median of its update ratio so far; ``woke`` how often it moved again after a rest.
    """

    __slots__ = ("first", "gradient", "now", "pace", "rests", "since", "update", "value", "woke")

    def __init__(self, now: ParameterStats) -> None:
        self.now = now
        self.first: float | None = None
        self.since = 0
        self.pace = 0.0
        self.rests = False
        self.woke = 0
        self.value, self.gradient, self.update = (Window(_KEPT_SAMPLES) for _ in range(3))

    def settle(self, step: int) -> None:
        """What was now becomes history."""
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


class SampleHistory:
    """The samples of one model in the steps of one optimizer.

    ``now`` is the sample that is looked at, ``weights`` are those of two or more axes in it that
    may train and that the optimizer holds, with their history. ``steps`` has the steps of the
    samples before.
    """

    def __init__(self) -> None:
        self.now: StepSample | None = None
        self.count = 0
        self.steps: deque[int] = deque(maxlen=_KEPT_SAMPLES)
        self.weights: dict[str, ParameterHistory] = {}
        self._known: dict[str, ParameterHistory] = {}

    def add(self, sample: StepSample) -> None:
        """The next sample is looked at; the one before it becomes history."""
        if self.now is not None:
            for weight in self.weights.values():
                weight.settle(self.now.step)
            self.steps.append(self.now.step)
        self.now = sample
        self.count += 1
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
