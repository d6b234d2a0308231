"""Finds the cause of a spike from the evidence in its capsule: one function for each cause, except
samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from gradscope.records.spike import Capsule, OutsideChange
from gradscope.rules._spike_samples import (
    BEFORE,
    Blame,
    blamed,
    is_sure_of_another_class,
    named,
    ordered,
    unusual_before,
)
from gradscope.rules._words import number, percent, plural

#: A learning rate jumps if it grows by this factor within this many steps.
_JUMP, RECENT = 3.0, 16
#: Adam's update is about the learning rate at most: the mean of a gradient over its root mean
#: square (Kingma and Ba, https://arxiv.org/abs/1412.6980, section 2.1).
_ADAM_UPDATE = 1.5
#: An update jumps at this many times the median before, and at this many times the gradient's
#: growth: the thresholds of GS615.
_UPDATE, _ALONE = 2.0, 1.5
#: The weights moved by more than this share of their norm, and by more than
#: this many times the reach of the updates.
_MOVED, _BY_HAND = 0.05, 2.0
#: After this many times 1 / (1 - momentum) steps, 5 % of a gradient are left in the momentum.
_REMEMBERED = 3.0
#: Gradients were divided by one factor if their ratios differ by less than this share (first
#: figure), and if the factor is larger than the second figure. The third figure is the smallest
#: number of ratios; two are enough if they differ by less than the last share.
_SAME, _FACTOR, _FEW_RATIOS, _EQUAL = 0.01, 4.0, 3, 1e-4
#: The loss got worse if its median over a few steps is this many times the lowest such median.
_WORSE, _LEVEL = 1.3, 8
#: A learning rate rose if it is at least this many times the lowest of the steps before.
_ROSE = 1.2
#: Usual updates move the weights by about 0.001 of their norm
#: (https://cs231n.github.io/neural-networks-3/). They are too large at the first figure; while the
#: learning rate rises and the loss does not fall, at the second. In 282 kept steps of healthy runs
#: the largest is 0.028.
_HUGE, _LARGE = 0.05, 0.01


@dataclass(frozen=True, slots=True)
class _Fact:
    """A cause other than samples; ``step`` is the step of its change, infinite without one."""

    step: float
    cause: str
    message: str


def spike_cause(capsule: Capsule) -> tuple[str, str]:
    """Return the cause, one of ``CAUSES``, and a sentence or two with the evidence."""
    facts = _facts(capsule)
    blame = _blame(capsule, facts)
    if blame is not None:
        return blame.cause, blame.message
    if facts:
        first = min(facts, key=lambda one: one.step)
        return first.cause, first.message
    return "undetermined", _undetermined(capsule)


def mention(capsule: Capsule, cause: str) -> str:
    """Return the kind of a kept step in a run's summary: "spike"; "sample", if only a sample is
    unusual; "" for no mention.

    Args:
        capsule: the capsule of the step.
        cause: the cause from ``spike_cause``.
    """
    if capsule.kind not in ("highest", "input", "sample"):
        return "spike"
    return "sample" if cause in ("samples", "labels") else ""


def with_worst_first(capsule: Capsule) -> Capsule:
    """Return the capsule with the samples to blame before the others."""
    return replace(capsule, samples=ordered(capsule, _blame(capsule, _facts(capsule))))


def _blame(capsule: Capsule, facts: Sequence[_Fact]) -> Blame | None:
    """Return the samples to blame. A rising learning rate makes samples hard before it makes the
    loss worse; after a change, losses cannot be compared with earlier ones.
    """
    changed = any(_makes_other_losses(one) for one in capsule.changes)
    return blamed(capsule, excused=bool(facts) or changed or _high_rate(capsule) is not None)


def _makes_other_losses(change: OutsideChange) -> bool:
    """Return True if losses before and after a change cannot be compared."""
    if change.kind != "weights":
        return change.kind in ("state", "setting", "written")
    before, after = change.before or 0.0, change.after or 0.0
    return abs(after - before) > _MOVED * before


def _facts(capsule: Capsule) -> list[_Fact]:
    """Return all causes with evidence, except samples."""
    recent = tuple(one for one in capsule.changes if capsule.step - one.step < RECENT)
    capsule = replace(capsule, changes=recent)
    found = (
        _weights,
        _new_state,
        _changes,
        _update,
        _learning_rate,
        _unscaled,
        _overflow,
        _written,  # last: with a new state in the same step, a run was resumed
    )
    return [fact for find in found if (fact := find(capsule)) is not None]


def _since(capsule: Capsule, step: float) -> str:
    """Return the time in words: ``at step 58, 2 steps before``."""
    ago = int(capsule.step - step)
    return f"at step {int(step)}, {plural(ago, 'step')} before" if ago else "at this step"


def _weights(capsule: Capsule) -> _Fact | None:
    """Return the cause if the weights moved further than the optimizer's updates can move them."""
    written = [one for one in capsule.changes if one.kind == "weights"]
    known = [one for one in capsule.signals if one.weight_norm is not None]
    pairs = [
        (b.step, b.weight_norm or 0.0, n.step, n.weight_norm or 0.0) for b, n in pairwise(known)
    ]
    pairs += [
        (one.since, one.before, one.step, one.after)
        for one in written
        if one.since is not None and one.before and one.after
    ]
    for since, before, step, after in pairs:
        if capsule.step - step >= RECENT or not before:
            continue
        moved = abs(after - before)
        if moved < _MOVED * before:
            continue
        exact = next((one.step for one in written if since < one.step <= step), None)
        reach = _reach(capsule, since, step, max(before, after), exact is not None)
        if reach is None or moved <= _BY_HAND * reach:
            continue
        when = "" if exact is None else f" They were written {_since(capsule, exact)}."
        return _Fact(
            step if exact is None else exact,
            "weights",
            f"the norm of the weights went from {number(before)} (step {since}) to "
            f"{number(after)}; updates of the optimizer reach {number(reach)} in that time. "
            "Something else wrote to the weights: a checkpoint was loaded, or they were scaled."
            f"{when}",
        )
    return None


def _written(capsule: Capsule) -> _Fact | None:
    """Return the cause if the loss jumped when the weights were written to."""
    for one in capsule.changes:
        if one.kind != "weights":
            continue
        jump = _jump_of_loss(capsule, one.step)
        if jump is not None:
            return _Fact(
                one.step,
                "weights",
                f"something other than the optimizer wrote to the weights "
                f"{_since(capsule, one.step)}, and the loss went from {number(jump[0])} to "
                f"{number(jump[1])}: a checkpoint was loaded, or a layer was set anew.",
            )
    return None


def _jump_of_loss(capsule: Capsule, step: int) -> tuple[float, float] | None:
    """Return the median loss before a step, and its loss, if that is above all before."""
    before = [one.loss for one in capsule.signals if one.loss is not None and one.step < step]
    now = next((one.loss for one in capsule.signals if one.step == step), None)
    recent = before[-RECENT:]
    if now is None or len(recent) < _LEVEL:
        return None
    usual, high = median(recent), max(recent)
    return (usual, now) if now > max(_WORSE * high, _JUMP * usual) else None


def _reach(capsule: Capsule, since: int, step: int, norm: float, exact: bool) -> float | None:
    """Return the largest distance by which the updates of some steps can have moved the weights.

    Args:
        capsule: the capsule of the spike.
        since: the first of these steps.
        step: the step after the last of them.
        norm: the norm of the weights, for weight decay.
        exact: True if version counters show writes to the weights in this time.
    """
    state = capsule.state
    between = [one for one in capsule.signals if since <= one.step < step]
    if state is None or not between:
        return None
    # The signals of the first of these steps may have been dropped.
    count = step - since
    usual_rate = median(one.learning_rate or 0.0 for one in between)
    rates = sum(one.learning_rate or 0.0 for one in between) + usual_rate * (count - len(between))
    decay = rates * state.settings.get("weight_decay", 0.0)
    sizes = [one.update_rms for one in between if one.update_rms is not None]
    if state.parameters and sizes and (exact or len(sizes) == count):
        updates = sum(sizes) if len(sizes) == count else max(sizes) * count
        return updates * math.sqrt(state.parameters) + decay * norm
    if state.second_moment is not None:
        rms = max(1.0, state.update_rms or 0.0)
        return rates * rms * math.sqrt(state.parameters) + decay * norm
    if state.kind != "SGD":
        return None
    kept = 1.0 - min(state.settings.get("momentum", 0.0), 0.999)
    # Momentum moves the weights by gradients of earlier steps, too.
    first = since - (_REMEMBERED / kept if kept < 1 else 0)
    moving = [one for one in capsule.signals if first <= one.step < step]
    norms = [one.clipped_norm for one in moving if one.clipped_norm is not None]
    # A step whose gradient was not read may have moved the weights by any distance.
    if not norms or (len(norms) < len(moving) and not exact):
        return None
    return rates * max(norms) / kept + decay * norm


def _new_state(capsule: Capsule) -> _Fact | None:
    """Return the cause if the optimizer's state is newer than the training."""
    state = capsule.state
    if state is None:
        return None
    new = next((one.step for one in capsule.changes if one.kind == "state"), None)
    counted = state.second_moment is not None and (state.steps or 0) + 8 < capsule.counted
    if new is None and counted:
        new = capsule.step - (state.steps or 0)
    if new is None:
        return None
    ago = capsule.step - new
    made = f"{plural(ago, 'step')} ago" if ago else "just now"
    return _Fact(
        new,
        "optimizer",
        f"the state of {state.kind} was made {made}, after "
        f"{plural(max(0, capsule.counted - ago), 'step')} of this optimizer: it was built anew, or "
        "its checkpoint was not loaded. Its first updates have the full learning rate in every "
        "direction.",
    )


def _changes(capsule: Capsule) -> _Fact | None:
    """Return the cause if a setting of the optimizer changed, or its state was written to."""
    kind = "the optimizer" if capsule.state is None else capsule.state.kind
    for one in capsule.changes:
        message = _of_change(one, kind, _since(capsule, one.step))
        if message:
            return _Fact(one.step, "optimizer", message)
    return None


def _of_change(change: OutsideChange, kind: str, when: str) -> str:
    if change.kind == "setting":
        return (
            f"`{change.name}` of {kind} went from {number(change.before or 0.0)} to "
            f"{number(change.after or 0.0)} {when}; no sample stands out."
        )
    if change.kind == "written":
        return (
            f"`{change.name}` in the state of {kind} was written to {when}, outside of the "
            "optimizer's own step; no sample stands out."
        )
    return ""


def _update(capsule: Capsule) -> _Fact | None:
    """Return the cause if an update before the step jumped though the gradient did not, or is too
    large for Adam."""
    paces = [
        (one, one.update_rms / one.learning_rate)
        for one in capsule.signals[:-1]
        if one.update_rms is not None and one.learning_rate
    ]
    norms = [one.clipped_norm for one in capsule.signals[:-1] if one.clipped_norm]
    if len(paces) > 2 * RECENT and norms:
        usual = median(pace for _, pace in paces[:-RECENT])
        ordered_paces = sorted(pace for _, pace in paces[:-RECENT])
        high = ordered_paces[-1 - len(ordered_paces) // 20]  # the first updates of Adam are large
        for one, pace in paces[-RECENT:]:
            grown = max(1.0, (one.clipped_norm or 0.0) / median(norms))
            if pace > _UPDATE * high and pace > _ALONE * grown * usual > 0:
                return _Fact(
                    one.step,
                    "optimizer",
                    f"the update of step {one.step} was {number(pace)} times the learning rate "
                    f"(root mean square), after a median of {number(usual)}; the gradient's norm "
                    f"was {number(grown)} times its median. The state of the optimizer does not "
                    "fit the gradient. Check `betas` and `eps`.",
                )
    state = capsule.state
    if state is not None and state.update_rms is not None and state.update_rms > _ADAM_UPDATE:
        return _Fact(
            math.inf,
            "optimizer",
            f"the update before this step was {number(state.update_rms)} times the learning rate "
            "(root mean square; about 1 at most in a sound state): the second moment is out of "
            "date or too small. Check `betas` and `eps`.",
        )
    return None


def _learning_rate(capsule: Capsule) -> _Fact | None:
    """Return the cause if the learning rate jumped, or is at its highest and still rises."""
    rates = [(one.step, one.learning_rate) for one in capsule.signals if one.learning_rate]
    if len(rates) < 8:
        return None
    recent = rates[-RECENT:]
    for (_, before), (step, after) in pairwise(recent):
        if after > _JUMP * before:
            return _Fact(
                step,
                "learning-rate",
                f"the learning rate went from {number(before)} to {number(after)} "
                f"{_since(capsule, step)}; no sample stands out.",
            )
    if capsule.kind in ("loss", "gradient", "non-finite") or _is_worse(capsule):
        high = _high_rate(capsule)
        if high is not None:
            return high
    return _large_updates(capsule)


def _large_updates(capsule: Capsule) -> _Fact | None:
    """Return the cause if the optimizer's updates are too large for the weights."""
    state, now = capsule.state, capsule.signals[-1]
    if state is None or not state.update_rms or not now.learning_rate or not now.weight_norm:
        return None
    norm = state.update_rms * now.learning_rate * math.sqrt(state.parameters)
    share = norm / now.weight_norm
    rates = [one.learning_rate or 0.0 for one in capsule.signals[-RECENT:]]
    losses = [one.loss for one in capsule.signals[-2 * RECENT :] if one.loss is not None]
    rises = all(after > before for before, after in pairwise(rates))
    stalls = len(losses) == 2 * RECENT and median(losses[RECENT:]) >= median(losses[:RECENT])
    if share <= (_LARGE if rises and stalls else _HUGE):
        return None
    more = ", the highest so far, and still rises" if rises else ""
    more += "; the loss no longer falls" if rises and stalls else ""
    return _Fact(
        math.inf,
        "learning-rate",
        f"each update moves the weights by {percent(share)} of their norm; 0.1 % is usual. The "
        f"learning rate is {number(now.learning_rate)}{more}. No sample stands out.",
    )


def _high_rate(capsule: Capsule) -> _Fact | None:
    """Return the cause if the learning rate is far above its median, or is at its highest and still
    rises."""
    rates = [one.learning_rate for one in capsule.signals if one.learning_rate]
    if len(rates) < 8:
        return None
    usual, now = median(rates), rates[-1]
    if now > _JUMP * usual:
        return _Fact(
            math.inf,
            "learning-rate",
            f"the learning rate is {number(now)}, {number(now / usual)} times its median of the "
            "steps before; no sample stands out.",
        )
    if all(after > before for before, after in pairwise(rates[-RECENT:])):
        return _Fact(
            math.inf,
            "learning-rate",
            f"the learning rate is {number(now)}, the highest so far, and still rises; no sample "
            "stands out. Warm up more slowly, or to less.",
        )
    if now >= max(rates) > _ROSE * min(rates) and (levels := _levels(capsule)) is not None:
        return _Fact(
            math.inf,
            "learning-rate",
            f"the learning rate rose from {number(min(rates))} to {number(now)}, and the loss from "
            f"{number(levels[0])} to {number(levels[1])}; no sample stands out. Warm up to less.",
        )
    return None


def _levels(capsule: Capsule) -> tuple[float, float] | None:
    """Return the lowest level of the loss and its level now, if that is above all losses of the
    steps with the lowest level. A level is a median over a few steps.
    """
    losses = [one.loss for one in capsule.signals if one.loss is not None]
    if len(losses) < 4 * _LEVEL:
        return None
    parts = [losses[n : n + 2 * _LEVEL] for n in range(0, len(losses) - 2 * _LEVEL + 1, _LEVEL)]
    lowest, now = min(parts, key=median), median(losses[-_LEVEL:])
    return (median(lowest), now) if now > max(_WORSE * median(lowest), *lowest) else None


def _is_worse(capsule: Capsule) -> bool:
    """Return True if the loss is well above its earlier level."""
    losses = [one.loss for one in capsule.signals if one.loss is not None]
    if len(losses) < 2 * _LEVEL or min(losses) <= 0:
        return False
    levels = [median(losses[n - _LEVEL : n]) for n in range(_LEVEL, len(losses) + 1, _LEVEL // 2)]
    return median(losses[-_LEVEL:]) > _WORSE * min(levels)


def _unscaled(capsule: Capsule) -> _Fact | None:
    """Return the cause if the optimizer got gradients that keep the loss scale."""
    for one in capsule.changes:
        message = _of_scale(one, capsule)
        if message:
            return _Fact(one.step, "loss-scale", message)
    ratios = [
        (one.step, one.clipped_norm / one.gradient_norm, one.loss_scale or 1.0)
        for one in capsule.signals
        if one.clipped_norm and one.gradient_norm
    ]
    since = capsule.step - RECENT
    recent = [one for one in ratios if one[0] > since]
    before = [ratio for step, ratio, _ in ratios if step <= since]
    # A loss scale set by hand is one factor in every step; the factor of clipping changes.
    enough = len(before) >= _FEW_RATIOS or (
        len(before) == 2 and abs(before[1] / before[0] - 1) < _EQUAL
    )
    usual = median(before) if enough else math.nan
    same = sum(abs(one / usual - 1) < _SAME for one in before) >= 0.9 * len(before)
    for step, ratio, scale in recent:
        if scale > 1 and ratio > _FACTOR and abs(ratio / scale - 1) < _SAME:
            return _Fact(
                step,
                "loss-scale",
                f"the optimizer got gradients multiplied by the loss scale, {number(scale)}, "
                f"{_since(capsule, step)}: they were not unscaled.",
            )
        if same and ratio > _FACTOR * usual:
            return _Fact(
                step,
                "loss-scale",
                f"the optimizer gets {number(usual)} times the gradients that backward leaves; "
                f"{_since(capsule, step)}, it got {number(ratio)} times these. A factor such as a "
                "loss scale was not removed.",
            )
    return _not_divided(capsule, usual) if same and usual * _FACTOR < 1 else None


def _not_divided(capsule: Capsule, usual: float) -> _Fact | None:
    """Return the cause if the script divides all gradients by one factor, and the optimizer once
    got a gradient as large as before the division, with a loss as before.

    Args:
        capsule: the capsule of the spike.
        usual: the norm that the optimizer gets over the norm that backward leaves.
    """
    since = capsule.step - RECENT
    old = [one for one in capsule.signals if one.step <= since]
    taken = [one.clipped_norm for one in old if one.clipped_norm is not None]
    losses = [one.loss for one in old if one.loss is not None]
    if len(taken) < _FEW_RATIOS or not losses or capsule.high_norm is None:
        return None
    for one in capsule.signals:
        norm = one.clipped_norm
        if one.step <= since or norm is None or one.loss is None:
            continue
        # The gradient before the division was not read in this step.
        if _FACTOR * max(taken) < norm <= capsule.high_norm and one.loss <= max(losses):
            return _Fact(
                one.step,
                "loss-scale",
                f"the optimizer gets {number(usual)} times the gradients that backward leaves. "
                f"{_since(capsule, one.step).capitalize()}, it got a norm of {number(norm)} after "
                f"at most {number(max(taken))}, with a loss as before. A factor such as a loss "
                "scale was not removed.",
            )
    return None


def _of_scale(change: OutsideChange, capsule: Capsule) -> str:
    """Return what a change of the loss scale did to the gradients; "" for nothing."""
    when, before, after = _since(capsule, change.step), change.before or 1.0, change.after or 1.0
    if change.kind == "scaled" and after > _FACTOR:
        return (
            f"the optimizer got gradients multiplied by the loss scale, {number(after)}, {when}: "
            "they were not unscaled."
        )
    if change.kind != "factor" or after < before:
        return ""
    norms = [(one.step, one.clipped_norm) for one in capsule.signals if one.clipped_norm]
    usual = [norm for step, norm in norms if step < change.step]
    if not usual and capsule.high_norm:  # as of a hinge, whose gradient is 0 in most steps
        usual = [capsule.high_norm]
    since = [norm for step, norm in norms if step >= change.step]
    if not usual or not since or max(since) <= _FACTOR * median(usual):
        return ""
    return (
        f"the script multiplies the loss by {number(after)} instead of {number(before)} {when}; "
        f"the optimizer got gradients {number(max(since) / median(usual))} times as large as "
        "usual. A factor such as a loss scale was not removed."
    )


def _overflow(capsule: Capsule) -> _Fact | None:
    """Return the cause if the gradient overflowed although the loss is finite."""
    now = capsule.signals[-1] if capsule.signals else None
    if now is None or not now.loss_scale or now.loss_scale <= 1:
        return None
    if capsule.kind != "non-finite" or now.loss is None:
        return None
    return _Fact(
        capsule.step,
        "loss-scale",
        f"the gradient has NaN or Inf where the loss is finite, with a loss scale of "
        f"{number(now.loss_scale)}: it overflowed.",
    )


def _undetermined(capsule: Capsule) -> str:
    if not capsule.samples:
        return "the gradient was not split by sample, and nothing before the step stands out."
    if capsule.follows is not None:
        return (
            f"it follows the spike of step {capsule.follows}, which no sample caused: see that "
            "step."
        )
    unusual = unusual_before(capsule)
    if unusual:
        return (
            f"gradient or loss were unusual already in {len(unusual)} of the {BEFORE} steps "
            f"before, first at step {unusual[0]}: their cause came before this step."
        )
    shares = [one.share for one in capsule.samples if one.share is not None]
    if not shares:
        return (
            "nothing before the step stands out; the parts of the samples are not known."
            f"{_largest_loss(capsule)}"
        )
    return (
        f"no sample stands out (the largest share is {percent(min(1.0, max(0.0, max(shares))))} "
        f"of {plural(len(shares), 'sample')}), and neither does anything before the step."
        f"{_largest_loss(capsule)}"
    )


def _largest_loss(capsule: Capsule) -> str:
    """Return a sentence on the sample with the largest loss, if it is far above the median."""
    known = [one for one in capsule.samples if one.loss is not None]
    if len(known) < 4:
        return ""
    worst = max(known, key=lambda one: one.loss or 0.0)
    usual, high = median(one.loss or 0.0 for one in known), worst.loss or 0.0
    if high < 2 * usual:
        return ""
    words = (
        f" The largest loss is that of {named(worst, capsule.samples)}: {number(high)} "
        f"(median {number(usual)})."
    )
    if is_sure_of_another_class(worst, [one for one in known if one is not worst]):
        words += " The model is sure of another class: its label may be wrong."
    return words
