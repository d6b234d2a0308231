"""The verdict of an experiment: which of the known causes the losses of its arms show, if any.

If the arms do not decide, the verdict is ``undetermined``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gradscope.experiment.arms import AS_IT_IS, BY_NAME, OTHER_SEED
from gradscope.experiment.comparison import (
    FAR,
    HELPS,
    LEFT,
    PLANTED,
    SAMPLES,
    SIGMA,
    Arms,
    Curve,
)
from gradscope.records.experiment import SHIFTED
from gradscope.typeset.numbers import number, plural

#: Fewest steps to judge.
FEWEST = 50
#: Powers of ten by which a learning rate is far off.
_HUNDRED = 2
#: One batch has no effect if more than this share of the loss's way to its floor is left.
_IDLE = 0.9
#: Share of the steps in which a better learning rate reaches the end of the script as it is.
_SOON = 1 / 3
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


_NOT_LEARNED = {
    True: "the targets depend on the inputs, and the model has learned little of that yet",
    False: "the model learns nothing from its inputs yet: the targets may be unrelated to them",
}
_MODEL_OR_TARGETS = "the model cannot overfit one batch, or the targets are unrelated to the inputs"
_PRINT_INPUT = "print the model's input at some steps: is it constant, zero, or an old batch?"
_PRINT = "print some inputs beside their targets, as the training step gets them"


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict, with the fields of ``ExperimentReport``, and a line for each arm by name."""

    cause: str | None
    message: str
    evidence: tuple[str, ...] = ()
    advice: str | None = None
    arms: dict[str, str] = field(default_factory=dict)


def judge(arms: Arms) -> Judged:
    """Return the verdict: the cause that the arms show, by the strongest evidence."""
    steps = len(arms.plain.losses)
    if steps < FEWEST:
        return Judged(
            *(None, f"undetermined: {plural(steps, 'step')} with a loss, {FEWEST} are needed"),
            advice="train longer: more epochs in the script; `--steps` and `--seconds` here",
        )
    lines = dict(_lines(arms))
    found = _held_back(arms) or _shifted(arms) or _of_data(arms) or _slow(arms) or _nothing(arms)
    return Judged(found.cause, found.message, found.evidence, found.advice, lines)


def _held_back(arms: Arms) -> Judged | None:
    """Return the verdict that the learning rate, or another setting, holds the training back."""
    helping = [name for name in arms.curves if arms.helps(name)]
    rates = [name for name in helping if BY_NAME[name].is_rate]
    removed = [name for name in helping if name in _REMOVED]
    rate = max(rates, key=arms.fall, default=None)
    taken = max(removed, key=arms.fall, default=None)
    # The more particular cause, unless a learning rate does far better.
    if taken is not None and (rate is None or arms.fall(taken) > 0.5 * arms.fall(rate)):
        what, advice = _HOLDS_BACK[taken]
        evidence = (_fell(arms, AS_IT_IS.name), _fell(arms, taken))
        return Judged(_REMOVED[taken], f"{what} keeps the script from training", evidence, advice)
    return None if rate is None else _of_rate(arms, rate)


def gains_nothing(arms: Arms) -> bool:
    """Return True if the script learns nothing from its inputs, and nothing holds it back."""
    return (arms.is_useless or arms.memorises) and _held_back(arms) is None


def _shifted(arms: Arms) -> Judged | None:
    """Return the verdict that the script trains with the targets of a neighbouring position."""
    if not gains_nothing(arms):
        return None
    names = [name for name in arms.curves if BY_NAME[name].late and arms.helps(name)]
    best = max(names, key=arms.fall, default=None)
    if best is None or not arms.left(best) <= FAR:
        return None
    where = "before" if best == SHIFTED[0] else "after"
    return Judged(
        *("targets-unrelated", f"the targets are those of the position {where}"),
        (_fell(arms, AS_IT_IS.name), _fell(arms, best)),
        "print a sequence beside its targets: which position does each target belong to?",
    )


def _slow(arms: Arms) -> Judged | None:
    """Return the verdict on a learning rate a hundred times off with which the script still learns
    something."""
    rate = arms.faster
    if rate is None or abs(math.log10(BY_NAME[rate].factor or 1.0)) < _HUNDRED:
        return None
    return _of_rate(arms, rate) if arms.reaches(rate) <= _SOON else None


def _of_rate(arms: Arms, rate: str) -> Judged:
    """Return the verdict that another learning rate trains the script."""
    factor = BY_NAME[rate].factor or 1.0
    how = f"too low: × {factor:g} trains" if factor > 1 else f"too high: × {factor:g} trains"
    evidence = (_fell(arms, AS_IT_IS.name), _fell(arms, rate))
    return Judged(
        *("learning-rate", f"the learning rate is {how}", evidence),
        f"multiply the learning rate by {factor:g}",
    )


def _of_data(arms: Arms) -> Judged | None:
    """Return the verdict on an unused input, unrelated targets, or a model that cannot fit them."""
    if arms.plain.diverged:
        return None
    unused = _unused(arms)
    if unused is not None:
        return unused
    one = "one-batch" if "one-batch" in arms.curves else None
    limited = arms.is_useless or (arms.floor is not None and arms.left(AS_IT_IS.name) > LEFT)
    if one is not None and limited and arms.is_stuck(one):
        rates = [name for name in arms.curves if BY_NAME[name].is_rate]
        best = max(rates, key=arms.fall, default=None)
        if best is not None and arms.left(best) <= LEFT:  # so the model can, and the loss is right
            return _of_rate(arms, best)
        if arms.moved is not None:
            return Judged(
                *(None, "undetermined: the steps are too small to overfit one batch"),
                (_fell(arms, one), f"{one}: {_moved(arms.moved)}"),
                "raise the learning rate: an update of 0.1% of the weights a step is usual",
            )
        # Targets without a relation to the inputs are hard to fit: the model may not be at fault.
        if arms.is_useless and not arms.is_faulty and arms.left(one) < _IDLE:
            if arms.is_related is False:
                return _of_targets(arms)
            if arms.is_related is None:
                return Judged(
                    *(None, f"undetermined: {_MODEL_OR_TARGETS}"),
                    (_fell(arms, one), _undecided(arms)),
                    _PRINT,
                )
        return Judged(
            *("model-or-loss", "the model does not overfit one batch", (_fell(arms, one),)),
            "check the loss function, the output's shape and range, and what is frozen",
        )
    unlearned = arms.is_useless or arms.memorises
    if not unlearned or arms.is_related:
        return None
    # If no arm shows that the model can fit, only the test without a model counts.
    if arms.is_related is None if one is None else not arms.left(one) <= 1 - LEFT:
        return None
    return _of_targets(arms)


def _of_targets(arms: Arms) -> Judged:
    """Return the verdict that the targets have no relation to the inputs, as far as arms show."""
    more = f"{_PRINT}; if they belong together: `--steps {10 * len(arms.plain.losses)}`"
    compared = arms.taken if arms.is_useless else ["mismatched"]
    fitted = (_fell(arms, "one-batch"),) if "one-batch" in arms.curves else ()
    evidence = (*(_no_better(name, arms) for name in compared), *fitted)
    if arms.is_related is None:
        return Judged(
            *(None, "undetermined: the targets are unrelated to the inputs, or not learned yet"),
            (*evidence, _undecided(arms)),
            more,
        )
    return Judged(
        *("targets-unrelated", "no relation of the targets to the inputs is found"),
        (*evidence, _unrelated(arms)),
        more,
    )


def _unused(arms: Arms) -> Judged | None:
    """Return the verdict on an input without information, or one that the model discards."""
    # If the arms differ, the loss alone mixes the pairs: it broadcasts, or reads outputs alone.
    same = bool(arms.taken) and all(map(arms.is_same, arms.taken))
    evidence = tuple(_same(name, arms) for name in arms.taken if arms.is_same(name))
    evidence = evidence or tuple(_no_better(name, arms) for name in arms.taken)
    if same or (arms.is_useless and arms.left(AS_IT_IS.name) > LEFT):
        if arms.is_constant:
            message = "the model gets the same input for every sample"
            return Judged("input-unused", message, evidence, _PRINT_INPUT)
        if arms.is_stale:
            message = "the model gets the same inputs at every step, and the targets change"
            return Judged("input-unused", message, evidence, _PRINT_INPUT)
    if not same:
        return None
    message = "the model's output does not depend on its input"
    if arms.is_dead:
        return Judged(
            *("model-or-loss", f"{message}: all units of a layer are off", evidence),
            "the findings below name the layer: check the scale of its input, bias and weights",
        )
    return Judged(
        *("input-unused", message, evidence),
        "the model's input differs from sample to sample: where does the forward lose it?",
    )


def _unrelated(arms: Arms) -> str:
    """Return the result of the test of the pairs, and the dependence that it can detect."""
    share = PLANTED[0] if arms.relation is None else arms.relation.share
    return (
        "a test of the pairs, without the model, finds no dependence either; "
        f"it would detect a linear one with {share:.0%} of the variance"
    )


def _undecided(arms: Arms) -> str:
    """Return the reason why the test of the pairs does not decide between the two readings."""
    test = "a test of the pairs, without the model, "
    if "no-input" not in arms.curves:
        return f"{test}is part of the arm `no-input`"
    if arms.relation is None:
        return f"{test}needs {SAMPLES} different samples, and a loss of each sample"
    if arms.relation.discrete:
        return f"{test}finds no dependence, but with bits or tokens it detects simple ones only"
    return f"{test}finds no dependence, but would miss a weak one: it has too few samples"


def _nothing(arms: Arms) -> Judged:
    """Return no verdict, with the arms' evidence instead."""
    evidence = [_fell(arms, AS_IT_IS.name)]
    if "one-batch" in arms.curves:
        evidence.append(_fell(arms, "one-batch"))
    count = len(arms.plain.losses)
    excluded = [cause for cause, shown in _excluded(arms) if shown]
    rate = arms.faster
    if rate is not None:
        evidence.append(f"{_fell(arms, rate)}: this rate trains more than twice as fast")
    if arms.is_useless:
        evidence.append(_NOT_LEARNED[bool(arms.is_related)])
    if arms.may_memorise:
        evidence.append(
            f"the steps use each sample {arms.repeats:.0f} times: a model that memorises them "
            "hides targets that do not belong to its inputs"
        )
    within = f"none of these within {plural(count, 'step')}: {', '.join(excluded)}"
    return Judged(
        None,
        within if excluded else "undetermined: no arm to compare with has a loss",
        tuple(evidence),
        f"allow more: `--steps {10 * count}`" if arms.left(AS_IT_IS.name) > LEFT else None,
    )


def _excluded(arms: Arms) -> Iterator[tuple[str, bool]]:
    """Yield each cause in words, and True if the arms with a loss exclude it."""
    names = set(arms.curves)
    one, taken = "one-batch" in names, bool({"no-input", "mismatched"} & names)
    removed = {_REMOVED.get(name) for name in names}
    yield "model or loss", one and _tests_model(arms)
    yield "input", taken
    known = not arms.is_useless or bool(arms.is_related)
    # A small gain may be of memorised pairs, in which the test of the pairs finds no relation.
    denied = arms.relation is not None and arms.relation.is_found is False
    denied = denied and not all(arms.gain(name) > FAR for name in arms.taken)
    memorised = arms.may_memorise or denied
    yield "targets", one and "mismatched" in names and known and not memorised
    rates = [name for name in names if BY_NAME[name].is_rate]
    # All the same: the script has no optimizer whose rate could be multiplied.
    yield "learning rate", not all(map(arms.is_same, rates))
    yield "regularisation", "regularisation" in removed
    yield "precision", "precision" in removed


def _tests_model(arms: Arms) -> bool:
    """Return True if *one batch* overfits, or is stuck far from that."""
    left = arms.left("one-batch")
    return left <= LEFT or (left > FAR and not (arms.has_ended or arms.is_open))


def _fell(arms: Arms, name: str) -> str:
    return f"{name}: {course(arms.curves[name], arms.start)}"


def course(curve: Curve, start: float = math.nan) -> str:
    """Return a loss's first and last values in words; ``start`` replaces a first NaN or Inf."""
    if not curve.losses:
        return "no step with a loss"
    if curve.diverged:
        return "the loss becomes NaN or Inf"
    first = start if curve.first is None else curve.first
    how = "falls" if curve.end < first else "goes"
    return f"the loss {how} from {number(first)} to {number(curve.end)}"


def _same(name: str, arms: Arms) -> str:
    largest = arms.curves[name].largest_difference(arms.plain)
    how = "exactly" if largest == 0 else f"to {largest:.0e}"
    return f"{name}: every loss is {how} that of {AS_IT_IS.name}"


def _no_better(name: str, arms: Arms) -> str:
    ends = (
        f"the loss ends at {number(arms.curves[name].end)}, without the change at "
        f"{number(arms.plain.end)}"
    )
    return f"{name}: {ends}: {max(0.0, arms.gain(name)):.0%} of what the right inputs could give"


def _moved(share: float) -> str:
    return f"all steps together can move the median weight by {share:.1%} of its norm"


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
    if left <= LEFT:
        return "overfits"
    if arms.has_ended:
        return f"{left:.0%} of the way left at the end of the schedule"
    if arms.is_open:
        return f"{left:.0%} of its start left; the lowest possible loss is not known"
    if arms.moved is not None:
        return _moved(arms.moved)
    if arms.is_stuck("one-batch"):
        return f"stuck with {left:.0%} of the way left"
    return f"still falls, {left:.0%} of the way left" if left > FAR else f"{left:.0%} left"


def _taken(arms: Arms, name: str) -> str:
    if arms.is_same(name):
        return f"the same losses as {AS_IT_IS.name}"
    gain = arms.gain(name)
    if gain < HELPS:
        return f"trains as well as {AS_IT_IS.name}"
    return f"worse than {AS_IT_IS.name}, as it should be"


def _compared(arms: Arms, name: str) -> str:
    if arms.helps(name):
        return f"trains, unlike {AS_IT_IS.name}"
    difference = arms.curves[name].end - arms.plain.end
    if not abs(difference) > SIGMA * arms.noise(name):
        is_far = abs(difference) > SIGMA * arms.noise(AS_IT_IS.name)
        return "scatters too much to compare" if is_far else f"ends as {AS_IT_IS.name}"
    return "ends lower" if difference < 0 else "ends higher"
