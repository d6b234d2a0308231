"""The verdict of an experiment: which of the known causes the losses of its arms show, if any.

Each threshold is a share of the script's reachable improvement, so that none depends on the loss's
unit. Where the arms do not decide, the verdict is that they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gradscope.experiment.arms import AS_IT_IS, BY_NAME, OTHER_SEED
from gradscope.experiment.curves import Curve
from gradscope.typeset.numbers import number, plural

#: A script whose loss falls by less than this share of another arm's fall is held back.
_HELD_BACK = 0.25
#: Share of the way to the lowest loss that such an arm must reach.
_REACHED = 0.2
#: Share of the way up to which the rest counts as overfitted for one batch.
_LEFT = 0.25
#: A loss is stuck if as many steps again would reduce the rest by less than this share.
_STUCK = 1 / 3
#: Inputs or targets help if the loss is lower by at least this share of the rest.
_HELPS = 0.03
#: Losses that never differ by more, as a share, are those of the same outputs.
_SAME = 1e-3
#: Multiple of the noise that a difference must exceed.
_SIGMA = 3.0
#: Number of times that a sample is used from which its target may be memorised.
_MEMORISED = 2.0
#: Fewest steps to judge.
FEWEST = 50
#: The part removed, and the cause if the script trains without it.
_REMOVED = {
    "no-clipping": "regularisation",
    "no-weight-decay": "regularisation",
    "no-dropout": "regularisation",
    "float32": "precision",
    "no-schedule": "learning-rate",
}
_HOLDS_BACK = {
    "no-clipping": ("clipping", "clip at a larger norm: about the 90th percentile of the norms"),
    "no-weight-decay": ("weight decay", "use a smaller `weight_decay`, such as 0.01"),
    "no-dropout": ("dropout", "drop less: 0.1 to 0.5 is usual"),
    "float32": ("autocast", "use bfloat16, or a `GradScaler` with float16"),
    "no-schedule": ("the schedule", "count the schedule in the steps that the script makes"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, as ``ExperimentReport`` has it, and a line for each arm by its name."""

    cause: str | None
    message: str
    evidence: tuple[str, ...] = ()
    advice: str | None = None
    arms: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arms:
    """The arms that ran.

    Attributes:
        curves: by the arm's name; *as it is* is among them.
        floor: the lowest loss that the first batch can have; None: not known.
        repeats: how many times the steps use a sample, on average.
    """

    curves: Mapping[str, Curve]
    floor: float | None = None
    repeats: float = 1.0

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
        if larger.
        """
        other = self.curves.get(OTHER_SEED.name)
        seeds = math.inf if other is None else abs(other.end - self.plain.end)
        spreads = [c.spread for c in (self.plain, self.curves[name]) if not c.diverged]
        return max(seeds if math.isfinite(seeds) else 0.0, *spreads, 0.0)

    @property
    def base(self) -> float:
        """Loss from which falls count: the start, or the loss without the input if the script as it
        is does no better.
        """
        blind = self.curves.get("no-input")
        if blind is None or blind.diverged or not self.gain("no-input") < _HELPS:
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
            # Without the seeds' distance: where neither trains, they end anywhere.
            and fall - max(plain, other) > _SIGMA * self.curves[name].spread
        )

    def gain(self, name: str) -> float:
        """Return how much *as it is* gains from the data that the arm removes: a share of the
        largest gain possible.
        """
        curve = self.curves[name]
        above, _ = curve.above(self.plain)
        room = curve.end - self.lowest
        return above / room if room > 0 else math.inf

    def is_same(self, name: str) -> bool:
        """Return True if the arm's losses equal those of *as it is*, step by step."""
        return self.curves[name].largest_difference(self.plain) < _SAME

    def left(self, name: str) -> float:
        """The share of the way to the lowest loss that is left at the end."""
        way = self.start - self.lowest
        return (self.curves[name].end - self.lowest) / way if way > 0 else math.nan

    def is_stuck(self, name: str) -> bool:
        """Return True if a loss is far from the lowest and falls too slowly to reach it."""
        curve, slope = self.curves[name], self.curves[name].slope()
        if slope is None or not self.left(name) > _LEFT:
            return False
        return -slope[0] * len(curve.losses) < _STUCK * (curve.end - self.lowest)


def judge(arms: Arms) -> Judged:
    """The cause that the arms show, the strongest evidence first."""
    steps = len(arms.plain.losses)
    if steps < FEWEST:
        return Judged(
            None, f"undetermined: {plural(steps, 'step')} with a loss, {FEWEST} are needed"
        )
    lines = dict(_lines(arms))
    found = _held_back(arms) or _of_data(arms) or _nothing(arms)
    return Judged(found.cause, found.message, found.evidence, found.advice, lines)


def _held_back(arms: Arms) -> Judged | None:
    """A learning rate, or something that holds the training back."""
    helping = [name for name in arms.curves if arms.helps(name)]
    rates = [name for name in helping if BY_NAME[name].factor is not None]
    removed = [name for name in helping if name in _REMOVED]
    rate = max(rates, key=arms.fall, default=None)
    taken = max(removed, key=arms.fall, default=None)
    # The more particular cause, unless a learning rate does far better.
    if taken is not None and (rate is None or arms.fall(taken) > 0.5 * arms.fall(rate)):
        what, advice = _HOLDS_BACK[taken]
        evidence = (_fell(arms, AS_IT_IS.name), _fell(arms, taken))
        return Judged(_REMOVED[taken], f"{what} keeps the script from training", evidence, advice)
    if rate is None:
        return None
    factor = BY_NAME[rate].factor or 1.0
    how = f"too low: × {factor:g} trains" if factor > 1 else f"too high: × {factor:g} trains"
    evidence = (_fell(arms, AS_IT_IS.name), _fell(arms, rate))
    return Judged(
        *("learning-rate", f"the learning rate is {how}", evidence),
        f"multiply the learning rate by {factor:g}",
    )


def _of_data(arms: Arms) -> Judged | None:
    """An input that is not used, targets that are not its own, or a model that cannot fit them."""
    if arms.plain.diverged:
        return None
    taken = [name for name in ("mismatched", "no-input") if name in arms.curves]
    # If the arms differ, the loss alone mixes the pairs: it broadcasts, or reads outputs alone.
    if taken and all(map(arms.is_same, taken)):
        evidence = tuple(_same(name, arms) for name in taken)
        return Judged(
            *("input-unused", "the model's output does not depend on its input", evidence),
            "print the model's input at a step: is it constant, or zero?",
        )
    one = "one-batch" if "one-batch" in arms.curves else None
    useless = bool(taken) and all(arms.gain(name) < _HELPS for name in taken)
    limited = useless or (arms.floor is not None and arms.left(AS_IT_IS.name) > _LEFT)
    if one is not None and limited and arms.is_stuck(one):
        return Judged(
            *("model-or-loss", "the model does not overfit one batch", (_fell(arms, one),)),
            "check the loss function, the output's shape and range, and what is frozen",
        )
    if not useless or one is None or not arms.left(one) <= 1 - _LEFT:
        return None
    evidence = (*(_no_better(name, arms) for name in taken), _fell(arms, one))
    return Judged(
        *("targets-unrelated", "the targets do not belong to the inputs", evidence),
        "print some inputs beside their targets, as the training step gets them; "
        f"if they belong together: `--steps {10 * len(arms.plain.losses)}`",
    )


def _nothing(arms: Arms) -> Judged:
    """Return no verdict, with the arms' evidence instead."""
    evidence = [_fell(arms, AS_IT_IS.name)]
    if "one-batch" in arms.curves:
        evidence.append(_fell(arms, "one-batch"))
    count = len(arms.plain.losses)
    told = [cause for cause, shown in _told(arms) if shown]
    if arms.repeats >= _MEMORISED:
        evidence.append(
            f"the steps use each sample {arms.repeats:.0f} times: a model that memorises them "
            "hides targets that do not belong to its inputs"
        )
    within = f"none of these within {plural(count, 'step')}: {', '.join(told)}"
    return Judged(
        None,
        within if told else "undetermined: no arm to compare with has a loss",
        tuple(evidence),
        f"allow more: `--steps {10 * count}`" if arms.left(AS_IT_IS.name) > _LEFT else None,
    )


def _told(arms: Arms) -> Iterator[tuple[str, bool]]:
    """Yield each cause in words, and whether the arms that have a loss can show it."""
    names = set(arms.curves)
    one, taken = "one-batch" in names, bool({"no-input", "mismatched"} & names)
    removed = {_REMOVED.get(name) for name in names}
    yield "model or loss", one
    yield "input", taken
    yield "targets", one and taken and arms.repeats < _MEMORISED
    rates = [name for name in names if BY_NAME[name].factor is not None]
    # All the same: the script has no optimizer whose rate could be multiplied.
    yield "learning rate", not all(map(arms.is_same, rates))
    yield "regularisation", "regularisation" in removed
    yield "precision", "precision" in removed


def _fell(arms: Arms, name: str) -> str:
    curve = arms.curves[name]
    if curve.diverged:
        return f"{name}: the loss becomes NaN or Inf"
    how = "falls" if curve.end < arms.start else "goes"
    return f"{name}: the loss {how} from {number(arms.start)} to {number(curve.end)}"


def _same(name: str, arms: Arms) -> str:
    largest = arms.curves[name].largest_difference(arms.plain)
    how = "exactly" if largest == 0 else f"to {largest:.0e}"
    return f"{name}: every loss is {how} that of {AS_IT_IS.name}"


def _no_better(name: str, arms: Arms) -> str:
    ends = f"the loss ends at {number(arms.curves[name].end)}, as it is at {number(arms.plain.end)}"
    return f"{name}: {ends}: {max(0.0, arms.gain(name)):.0%} of what the right inputs could give"


def _lines(arms: Arms) -> Iterator[tuple[str, str]]:
    """Yield a line on the result of each arm."""
    plain = arms.plain
    for name, curve in arms.curves.items():
        if curve.diverged:
            yield name, "the loss becomes NaN or Inf"
        elif name == AS_IT_IS.name:
            yield name, f"{arms.left(name):.0%} of the way to the lowest loss is left"
        elif name == OTHER_SEED.name:
            yield name, f"ends {number(abs(curve.end - plain.end))} from {AS_IT_IS.name}: the noise"
        elif name == "one-batch":
            yield name, _overfits(arms)
        elif name in ("no-input", "mismatched"):
            yield name, _taken(arms, name)
        else:
            yield name, _compared(arms, name)


def _overfits(arms: Arms) -> str:
    left = arms.left("one-batch")
    if left <= _LEFT:
        return "overfits"
    if arms.is_stuck("one-batch"):
        return f"stuck with {left:.0%} of the way left"
    return f"still falls, {left:.0%} of the way left"


def _taken(arms: Arms, name: str) -> str:
    if arms.is_same(name):
        return f"the same losses as {AS_IT_IS.name}"
    gain = arms.gain(name)
    if gain < _HELPS:
        return f"trains as well as {AS_IT_IS.name}"
    return f"worse than {AS_IT_IS.name}, as it should be"


def _compared(arms: Arms, name: str) -> str:
    if arms.helps(name):
        return f"trains, unlike {AS_IT_IS.name}"
    difference = arms.curves[name].end - arms.plain.end
    if not abs(difference) > _SIGMA * arms.noise(name):
        apart = abs(difference) > _SIGMA * arms.noise(AS_IT_IS.name)
        return "scatters too much to compare" if apart else f"ends as {AS_IT_IS.name}"
    return "ends lower" if difference < 0 else "ends higher"
