"""Comparison of the arms' losses by thresholds.

Each threshold is a share of the script's reachable improvement, or a multiple of the noise, so that
none depends on the loss's unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradscope.experiment.arms import AS_IT_IS, BY_NAME, OTHER_SEED

#: Shares of the steps over which the end and the slope are measured.
_END, _SLOPE = 1 / 5, 1 / 3
#: Number of first steps whose losses are averaged if the weights barely move.
FIRST = 5
#: Parts whose means give the error of a difference.
_BLOCKS = 8
#: Half of a 95 % interval, in standard errors.
_HALF = 1.96


@dataclass(frozen=True, slots=True)
class Curve:
    """The losses of one arm; None is NaN or Inf.

    Two curves of one script can be compared step by step: both have the same batches and random
    numbers, until an arm's change affects these.
    """

    losses: tuple[float | None, ...]

    @property
    def diverged(self) -> bool:
        """True if the end of the curve is NaN or Inf."""
        tail = self._last(_END)
        return not tail or sum(loss is None for loss in tail) > len(tail) / 2

    @property
    def first(self) -> float | None:
        """The loss of the first step."""
        return self.losses[0] if self.losses else None

    @property
    def beginning(self) -> float | None:
        """The mean of the first steps."""
        known = [loss for loss in self.losses[:FIRST] if loss is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def end(self) -> float:
        """The median of the last fifth of the steps; infinite if it diverged."""
        known = [loss for loss in self._last(_END) if loss is not None]
        return math.inf if self.diverged else statistics.median(known)

    @property
    def spread(self) -> float:
        """The standard error of ``end``, from the scatter of the steps around a fitted line."""
        known = [loss for loss in self._last(_END) if loss is not None]
        if len(known) < 3:
            return 0.0
        _, rest = _line(known)
        return 1.25 * rest / math.sqrt(len(known))  # a median's is larger than a mean's

    def slope(self) -> tuple[float, float, float] | None:
        """Return the slope of the loss per step in the last third, and its 95 % interval."""
        known = [loss for loss in self._last(_SLOPE) if loss is not None]
        n = len(known)
        if n < 4 or self.diverged:
            return None
        slope, rest = _line(known)
        half = _HALF * rest / math.sqrt(n * (n * n - 1) / 12)
        return slope, slope - half, slope + half

    def speeds_up(self) -> bool:
        """Return True if the loss falls significantly, and faster in the last third than in the
        second."""
        slope = self.slope()
        third = math.ceil(len(self.losses) * _SLOPE)
        before = Curve(self.losses[:-third][-third:])
        second = _line([loss for loss in before.losses if loss is not None] or [0.0, 0.0])[0]
        return slope is not None and slope[2] < 0 and slope[0] < second

    def above(self, other: Curve, steps: int | None = None) -> tuple[float, float]:
        """Return the mean of this loss minus another in the second half, with its standard error.
        The error comes from the means of ``_BLOCKS`` parts, because nearby steps are correlated.

        Args:
            other: the loss to compare with.
            steps: only so many steps count; None: all.
        """
        pairs = list(zip(self.losses, other.losses, strict=False))[:steps]
        second = pairs[len(pairs) // 2 :]
        differences = [a - b for a, b in second if a is not None and b is not None]
        if len(differences) < 2 * _BLOCKS:
            mean = statistics.fmean(differences) if differences else math.nan
            return mean, math.inf
        size = len(differences) / _BLOCKS
        parts = [differences[round(i * size) : round((i + 1) * size)] for i in range(_BLOCKS)]
        error = statistics.stdev(map(statistics.fmean, parts)) / math.sqrt(_BLOCKS)
        return statistics.fmean(differences), error

    def largest_difference(self, other: Curve) -> float:
        """Return the largest difference at a step, relative to the loss there."""
        pairs = zip(self.losses, other.losses, strict=False)
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        shares = (abs(a - b) / max(abs(a), abs(b)) for a, b in known if a != b)
        return max(shares, default=0.0) if known else math.inf

    def _last(self, share: float) -> Sequence[float | None]:
        count = max(1, math.ceil(len(self.losses) * share))
        return self.losses[-count:]


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the least-squares line, and the standard deviation around it."""
    n = len(values)
    slope, intercept = statistics.linear_regression(range(n), values)
    rest = math.fsum((y - slope * x - intercept) ** 2 for x, y in enumerate(values))
    return slope, math.sqrt(rest / max(1, n - 2))


#: A script whose loss falls by less than this share of another arm's fall is held back.
_HELD_BACK = 0.25
#: Share of the way to the lowest loss that such an arm must reach.
_REACHED = 0.2
#: Share of the way up to which the rest counts as overfitted for one batch.
LEFT = 0.25
#: Share above which it counts as far: targets that the input does not determine leave less.
FAR = 0.5
#: A loss is stuck if a second run of this length would reduce the rest by less than this share.
_STUCK = 1 / 3
#: Share of the largest learning rate below which a schedule has ended the training.
_ENDED = 0.1
#: Inputs or targets help if the loss is lower by at least this share of the rest.
HELPS = 0.03
#: Losses that never differ by more, as a share, are those of the same outputs.
_SAME = 1e-3
#: Multiple of the noise that a difference must exceed.
SIGMA = 3.0
#: Standard deviations from which targets depend on the inputs.
RELATED = 5.0
#: Standard errors from which a gain, however small, is learned.
_LEARNS = 4.0
#: Number of times that a sample is used from which its target may be memorised.
MEMORISED = 2.0
#: Shares of the variance that a planted relation explains; the test has to see one of them.
PLANTED = (0.1, 0.2, 0.3)
#: Fewest samples that it needs.
SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Dependence:
    """Result of a test without the model: the dependence of targets on inputs, and the sensitivity
    of the test.

    Attributes:
        strength: the dependence, in standard deviations of shuffled pairs.
        planted: the strength if one direction of the same inputs explains a share of the variance
            of the same targets: the first share of ``PLANTED`` that the test detects, or the last.
        share: that share.
        discrete: True if most columns of the inputs have few values, as bits and tokens have. The
            relation may then be any table, such as a parity; the test detects few of them.
    """

    strength: float
    planted: float
    discrete: bool
    share: float = PLANTED[0]

    @property
    def is_found(self) -> bool | None:
        """True if the targets depend on the inputs; None: the test cannot tell."""
        if self.strength >= RELATED:
            return True
        return None if self.discrete or self.planted < RELATED else False


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms that ran.

    Attributes:
        curves: by the arm's name; *as it is* is among them.
        floor: the lowest loss that the first batch can have; None: not known.
        repeats: the number of times that the steps use a sample, on average.
        is_paired: True if *mismatched* gives a sample the same wrong inputs each time.
        relation: dependence of the targets on the inputs; None: not known.
        rate_left: the last learning rate of *as it is*, as a share of its largest.
        is_faulty: True if a rule of ``gradscope run`` reports an error in *one batch*.
        moved: the distance by which the steps of *one batch* can move the median weight, as a share
            of its norm; None if it is far enough for a verdict on the model.
        is_open: True if a loss function of PyTorch makes the loss, or a part of it, and the lowest
            value is not known, as for a VAE.
        is_constant: True if the model gets the same input for every sample.
        is_dead: True if a rule finds a layer in *as it is* whose units are all off.
        is_stale: True if the model gets the same inputs at every step, and the targets change.
    """

    curves: Mapping[str, Curve]
    floor: float | None = None
    repeats: float = 1.0
    relation: Dependence | None = None
    rate_left: float = 1.0
    moved: float | None = None
    is_open: bool = False
    is_paired: bool = False
    is_faulty: bool = False
    is_constant: bool = False
    is_stale: bool = False
    is_dead: bool = False

    @property
    def has_ended(self) -> bool:
        """True if the schedule has ended the training: no loss falls any more."""
        return self.rate_left < _ENDED

    @property
    def plain(self) -> Curve:
        """*As it is*."""
        return self.curves[AS_IT_IS.name]

    @property
    def start(self) -> float:
        """The loss before anything is learned."""
        slow = self.curves.get("learning-rate-x0.01")
        found = self.plain.first if slow is None else slow.beginning
        return math.nan if found is None else found

    @property
    def lowest(self) -> float:
        """Lowest loss that is reachable: the floor, else the lowest end; 0 if no loss is
        negative.
        """
        if self.floor is not None:
            return self.floor
        known = [loss for c in self.curves.values() for loss in c.losses if loss is not None]
        return 0.0 if min(known, default=0.0) >= 0 else min(c.end for c in self.curves.values())

    def noise(self, name: str) -> float:
        """Return the difference by chance between the ends of an arm and of *as it is*.

        It is the difference between two seeds of *as it is*, or the scatter of either arm's steps
        if that is larger.
        """
        other = self.curves.get(OTHER_SEED.name)
        seeds = math.inf if other is None else abs(other.end - self.plain.end)
        spreads = [c.spread for c in (self.plain, self.curves[name]) if not c.diverged]
        return max(seeds if math.isfinite(seeds) else 0.0, *spreads, 0.0)

    @property
    def base(self) -> float:
        """The loss from which every fall is measured: the start, or the loss without the input if
        the script as it is does no better.
        """
        blind = self.curves.get("no-input")
        if blind is None or blind.diverged or not self.gain("no-input") < HELPS:
            return self.start
        return min(self.start, blind.end)

    def fall(self, name: str) -> float:
        """Return the decrease of an arm's loss; minus infinity if it diverges."""
        return self.base - self.curves[name].end

    def helps(self, name: str) -> bool:
        """Return True if the arm trains and the script as it is does not, with either seed."""
        fall, plain = self.fall(name), self.fall(AS_IT_IS.name)
        other = self.fall(OTHER_SEED.name) if OTHER_SEED.name in self.curves else plain
        return (
            fall >= _REACHED * (self.base - self.lowest)
            and plain < _HELD_BACK * fall
            # Another seed may make other data, whose losses differ.
            and other < 2 * _HELD_BACK * fall
            and not self.left(AS_IT_IS.name) <= LEFT  # trained before the first step
            # Without the seeds' distance: where neither trains, they end anywhere.
            and fall - max(plain, other) > SIGMA * self.curves[name].spread
        )

    @property
    def faster(self) -> str | None:
        """Another learning rate, if the loss falls twice as far with it, and the script as it is
        has more than half of the way left.
        """
        rates = [name for name in self.curves if BY_NAME[name].is_rate]
        best = max(rates, key=self.fall, default=None)
        if best is None or not self.left(AS_IT_IS.name) > FAR:
            return None
        reached = self.fall(best) >= _REACHED * (self.base - self.lowest)
        return best if reached and self.fall(best) > 2 * self.fall(AS_IT_IS.name) else None

    def reaches(self, name: str) -> float:
        """Return the share of its steps after which an arm stays below the end of *as it is*."""
        losses = [math.inf if one is None else one for one in self.curves[name].losses]
        medians = (statistics.median(losses[i : i + FIRST]) for i in range(len(losses)))
        above = [i for i, one in enumerate(medians, 1) if one > self.plain.end]
        return max(above, default=0) / len(losses)

    def gain(self, name: str) -> float:
        """Return how much *as it is* gains from the data that the arm removes: a share of the
        largest gain possible.
        """
        curve = self.curves[name]
        above, _ = curve.above(self.plain)
        room = curve.end - self.lowest
        return above / room if room > 0 else math.inf

    @property
    def taken(self) -> list[str]:
        """The arms that take the input away."""
        return [name for name in ("mismatched", "no-input") if name in self.curves]

    @property
    def is_useless(self) -> bool:
        """True if the script as it is gains next to nothing from its inputs."""
        return bool(self.taken) and all(self.gain(name) < HELPS for name in self.taken)

    @property
    def compares_memorising(self) -> bool:
        """True if the model could memorise wrong pairs as well as right ones, and the samples are
        enough to distinguish the two.
        """
        return self.is_paired and self.relation is not None and "mismatched" in self.curves

    @property
    def may_memorise(self) -> bool:
        """True if samples come again, and no arm shows that the script as it is fits right pairs
        faster than wrong ones.
        """
        if self.repeats < MEMORISED:
            return False
        return not self.compares_memorising or self.gain("mismatched") < HELPS

    @property
    def memorises(self) -> bool:
        """True if the script as it is fits its targets no faster than wrong pairs.

        After too many steps the script memorises both; this is then False.
        """
        far = self.left(AS_IT_IS.name) > FAR
        return self.compares_memorising and self.may_memorise and far

    @property
    def is_related(self) -> bool | None:
        """True if the targets depend on the inputs, learned or not; None: not known.

        A small gain is enough if it exceeds the noise, as long as each sample is new: a model may
        have memorised the others.
        """
        fresh = int(len(self.plain.losses) / max(1.0, self.repeats))
        found = [self.curves[name].above(self.plain, fresh) for name in self.taken]
        if found and all(gain > _LEARNS * error for gain, error in found):
            return True
        return None if self.relation is None else self.relation.is_found

    def is_same(self, name: str) -> bool:
        """Return True if the arm's losses equal those of *as it is*, step by step."""
        return self.curves[name].largest_difference(self.plain) < _SAME

    def left(self, name: str) -> float:
        """Return the share of the way to the lowest loss that is left at the end.

        The way begins at the start. If the script starts with a trained model, it begins at the
        loss without the right inputs, before or after training.
        """
        taken = [self.curves[one] for one in self.taken]
        blind = min((loss for c in taken for loss in (c.first or 0.0, c.end)), default=0.0)
        way = max(self.start, blind) - self.lowest
        return (self.curves[name].end - self.lowest) / way if way > 0 else math.nan

    def is_stuck(self, name: str) -> bool:
        """Return True if a loss is far from the lowest and falls too slowly to reach it.

        "Far" means that more than ``FAR`` of the way is left, or more than ``LEFT`` if a rule
        reports an error. False if the loss falls ever faster, because it is leaving a plateau; if
        the schedule has ended, which stops any loss; or if the lowest loss is unknown.
        """
        curve, slope = self.curves[name], self.curves[name].slope()
        far = LEFT if self.is_faulty else FAR
        if slope is None or not self.left(name) > far or curve.speeds_up():
            return False
        if self.has_ended or self.is_open:
            return False
        return -slope[0] * len(curve.losses) < _STUCK * (curve.end - self.lowest)
