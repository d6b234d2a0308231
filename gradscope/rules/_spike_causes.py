"""Causes of a spike, by the evidence in its capsule: one function for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from gradscope.records.spike import Capsule, SpikeSample
from gradscope.rules._words import number, percent, plural

#: Samples are to blame if at most one in so many hold half of the gradient.
_FEW = 8
_HALF = 0.5
#: A part is unusual at so many times the median of the others.
_UNUSUAL = 5.0
#: Without the samples to blame, the gradient is at most so many times its median.
_USUAL = 3.0
#: Number of steps after a spike in which another may be its aftermath.
AFTERMATH = 64
#: Number of steps before that may be unusual; with more, this step is their aftermath.
_BEFORE, _UNUSUAL_BEFORE = 16, 2
#: A learning rate jumps if it grows by this factor within so many steps.
_JUMP, _RECENT = 3.0, 16
#: Adam's update is about the learning rate at most: the mean of a gradient over its root mean
#: square (Kingma and Ba, https://arxiv.org/abs/1412.6980, section 2.1).
_ADAM_UPDATE = 1.5
#: The weights moved further than so many times what the updates can do.
_BY_HAND = 2.0


def spike_cause(capsule: Capsule) -> tuple[str, str]:
    """The cause, one of ``CAUSES``, and a sentence or two with the evidence."""
    for cause, find in (
        ("samples", _nonfinite_samples),
        # Once weights have blown up, any sample may make a large gradient.
        *((("samples", _samples),) if not _is_aftermath(capsule) else ()),
        ("weights", _weights),
        ("optimizer", _optimizer),
        ("learning-rate", _learning_rate),
        ("loss-scale", _loss_scale),
        ("labels", _labels),
    ):
        message = find(capsule)
        if message:
            return cause, message
    return "undetermined", _undetermined(capsule)


def named(sample: SpikeSample, count: int) -> str:
    """``sample 7 of 32 (index 91204)``."""
    index = "" if sample.dataset_index is None else f" (index {sample.dataset_index})"
    call = f" of call {sample.call}" if sample.call else ""
    return f"sample {sample.index} of {count}{call}{index}"


def _nonfinite_samples(capsule: Capsule) -> str | None:
    """Return the cause if few of the samples have a NaN or Inf; a mixing module spreads it
    later.
    """
    count = len(capsule.samples)
    for place, what, others in (
        ("input", "its input has NaN or Inf", "the other inputs have none"),
        ("output", "the model returned NaN or Inf for it", "for the others it did not"),
        ("gradient", "the loss sent NaN or Inf back to it", "to the others it did not"),
    ):
        if place != "input" and _is_aftermath(capsule):
            return None  # a training that has blown up overflows at one sample first
        bad = [one for one in capsule.samples if one.nonfinite == place]
        if len(bad) > max(1, count // 4) or (bad and count < 2):
            return None
        if bad:
            more = f", and {plural(len(bad) - 1, 'more sample')}" if len(bad) > 1 else ""
            return f"{named(bad[0], count)}{more}: {what}; {others}."
    return None


def _samples(capsule: Capsule) -> str | None:
    """Few hold most of the gradient, and without them it would be as before."""
    known = [one for one in capsule.samples if one.share is not None and one.gradient_norm]
    count = len(known)
    if count < 2 or capsule.norm is None:
        return None
    held = 0.0
    for k, sample in enumerate(known[: max(1, count // _FEW)], 1):
        held += sample.share or 0.0
        rest = known[k:]
        usual = median(one.gradient_norm or 0.0 for one in rest)
        if (sample.gradient_norm or 0.0) < _UNUSUAL * usual:
            return None
        if held >= _HALF and not _still_high(capsule, held):
            # Updates that are too large, or weights that were written, make samples hard.
            others = (_weights, _optimizer, _learning_rate)
            if any(one(capsule) for one in others) and not _size(known[0], rest) > _UNUSUAL:
                return None
            return _of_few(capsule, known[:k], rest, held, usual)
    return None


def _size(sample: SpikeSample, others: Sequence[SpikeSample]) -> float:
    """Return how many times as large as the others' its input is; NaN if unknown."""
    scales = [one.input_rms for one in others if one.input_rms]
    if sample.input_rms is None or not scales:
        return math.nan
    return sample.input_rms / median(scales)


def _is_aftermath(capsule: Capsule) -> bool:
    """Return True if it follows a spike without a sample as cause, or unusual steps."""
    return capsule.follows is not None or len(_unusual_before(capsule)) > _UNUSUAL_BEFORE


def _unusual_before(capsule: Capsule) -> list[int]:
    """The steps just before with an unusual gradient or loss."""
    norm = capsule.usual_norm or math.inf
    losses = [one.loss for one in capsule.signals[:-1] if one.loss is not None]
    loss = median(losses) if losses else 0.0
    return [
        one.step
        for one in capsule.signals[-_BEFORE - 1 : -1]
        if (one.gradient_norm or 0.0) > _USUAL * norm or (one.loss or 0.0) > _USUAL * loss > 0
    ]


def _still_high(capsule: Capsule, held: float) -> bool:
    """Return True if the other samples' part of the gradient is unusually large too."""
    if capsule.usual_norm is None or capsule.norm is None or capsule.kind == "asked":
        return False
    usual = max(_USUAL * capsule.usual_norm, capsule.high_norm or 0.0)
    return max(0.0, 1.0 - held) * capsule.norm > usual


def _of_few(
    capsule: Capsule,
    worst: Sequence[SpikeSample],
    rest: Sequence[SpikeSample],
    held: float,
    usual: float,
) -> str:
    first, total = worst[0], len(capsule.samples)
    which = named(first, total)
    if len(worst) > 1:
        others = ", ".join(str(one.index) for one in worst[1:4])
        which += f" and {plural(len(worst) - 1, 'more')} ({others}{', …' if worst[4:] else ''})"
    ratio = (first.gradient_norm or 0.0) / usual if usual else math.inf
    times = f"{number(ratio)} times the median sample's" if usual else "the others have none"
    said = [
        f"{which}: {percent(min(held, 1.0))} of the gradient; its gradient norm is "
        f"{number(first.gradient_norm)}, {times}."
    ]
    losses = [one.loss for one in rest if one.loss is not None]
    if first.loss is not None and losses:
        said.append(f"Its loss is {number(first.loss)} (median {number(median(losses))}).")
    said += _worst_token(first)
    size = _size(first, rest)
    if not math.isnan(size):
        if size > _UNUSUAL:
            said.append(f"Its input is {number(size)} times as large as the median.")
        elif size * _UNUSUAL < 1:
            said.append("Its input is nearly empty.")
        elif first.loss is not None and losses and first.loss > _UNUSUAL * median(losses):
            said.append("Its input is of usual size: check its label.")
    return " ".join(said)


def _worst_token(sample: SpikeSample) -> list[str]:
    """A sentence on the token with the largest loss, if it is unusual."""
    token = sample.token
    if token is None or token.median is None or token.loss < _UNUSUAL * token.median:
        return []
    return [
        f"Its token {token.position} (target {token.target}) has a loss of {number(token.loss)} "
        f"(median of its tokens {number(token.median)})."
    ]


def _weights(capsule: Capsule) -> str | None:
    """The weights moved further than updates move them."""
    known = [one for one in capsule.signals if one.weight_norm is not None]
    if len(known) < 2 or capsule.state is None:
        return None
    before, now = known[-2], known[-1]
    between = [one for one in capsule.signals if before.step <= one.step < now.step]
    if not before.weight_norm or now.step != capsule.step or not between:
        return None
    moved = abs((now.weight_norm or 0.0) - before.weight_norm)
    if moved < 0.05 * before.weight_norm:
        return None
    reach = _reach(capsule, len(between))
    if reach is None or moved <= _BY_HAND * reach:
        return None
    return (
        f"the norm of the weights went from {number(before.weight_norm)} (step {before.step}) to "
        f"{number(now.weight_norm)}; updates of the optimizer reach {number(reach)} in that time. "
        "Something else wrote to the weights: a checkpoint was loaded, or they were scaled."
    )


def _reach(capsule: Capsule, steps: int) -> float | None:
    """Return the largest distance by which the last updates can have moved the weights."""
    state = capsule.state
    assert state is not None
    between = capsule.signals[-1 - steps : -1]
    rates = [one.learning_rate or 0.0 for one in between]
    decay = sum(rates) * state.settings.get("weight_decay", 0.0)
    norm = max((one.weight_norm or 0.0) for one in capsule.signals)
    if state.second_moment is not None:
        rms = max(1.0, state.update_rms or 0.0)
        return sum(rates) * rms * math.sqrt(state.parameters) + decay * norm
    if state.kind != "SGD":
        return None
    norms = [one.clipped_norm for one in between if one.clipped_norm is not None]
    if not norms:
        return None
    kept = 1.0 - min(state.settings.get("momentum", 0.0), 0.999)
    # Of steps whose gradients were not read, the largest that was read is taken.
    return sum(rates) * max(norms) / kept + decay * norm


def _optimizer(capsule: Capsule) -> str | None:
    """Return the cause if the optimizer's state is newer than the training, or its updates are too
    large.
    """
    state = capsule.state
    if state is None:
        return None
    if state.second_moment is not None and (state.steps or 0) + 8 < capsule.counted:
        made = f"{plural(state.steps or 0, 'step')} ago" if state.steps else "just now"
        return (
            f"the state of {state.kind} was made {made}, after {plural(capsule.counted, 'step')} "
            "of this optimizer: it was built anew, or its checkpoint was not loaded. Its first "
            "updates have the full learning rate in every direction."
        )
    if state.update_rms is not None and state.update_rms > _ADAM_UPDATE:
        return (
            f"the update before this step was {number(state.update_rms)} times the learning rate "
            "(root mean square; about 1 at most in a sound state): the second moment is out of "
            "date or too small. Check `betas` and `eps`."
        )
    return None


def _learning_rate(capsule: Capsule) -> str | None:
    """Return the cause if the learning rate jumped, or is at its highest and still rises."""
    rates = [(one.step, one.learning_rate) for one in capsule.signals if one.learning_rate]
    if len(rates) < 8:
        return None
    recent = rates[-_RECENT:]
    for (_, before), (step, after) in pairwise(recent):
        if after > _JUMP * before:
            return (
                f"the learning rate went from {number(before)} to {number(after)} at step {step}, "
                f"{plural(capsule.step - step, 'step')} before; no sample stands out."
            )
    usual, now = median(rate for _, rate in rates), rates[-1][1]
    if now > _JUMP * usual:
        return (
            f"the learning rate is {number(now)}, {number(now / usual)} times its median of the "
            "steps before; no sample stands out."
        )
    if all(after > before for (_, before), (_, after) in pairwise(recent)):
        return (
            f"the learning rate is {number(now)}, the highest so far, and still rises; no sample "
            "stands out. Warm up more slowly, or to less."
        )
    return None


def _loss_scale(capsule: Capsule) -> str | None:
    """The gradient overflowed where the loss is finite, or keeps the loss scale."""
    now = capsule.signals[-1] if capsule.signals else None
    if now is None or not now.loss_scale or now.loss_scale <= 1:
        return None
    if capsule.kind == "non-finite" and now.loss is not None:
        return (
            f"the gradient has NaN or Inf where the loss is finite, with a loss scale of "
            f"{number(now.loss_scale)}: it overflowed."
        )
    if now.clipped_norm and now.gradient_norm:
        ratio = now.clipped_norm / now.gradient_norm
        if ratio > _UNUSUAL and abs(ratio / now.loss_scale - 1) < 0.01:
            return (
                f"the optimizer got gradients multiplied by the loss scale, "
                f"{number(now.loss_scale)}: they were not unscaled."
            )
    return None


def _labels(capsule: Capsule) -> str | None:
    """One sample's loss is unusual, and no sample's gradient is."""
    known = [one for one in capsule.samples if one.loss is not None]
    if len(known) < 4 or capsule.kind != "loss" or _is_aftermath(capsule):
        return None
    losses = sorted(one.loss or 0.0 for one in known)
    worst = max(known, key=lambda one: one.loss or 0.0)
    usual, high = median(losses[:-1]), worst.loss or 0.0
    norm = capsule.norm if capsule.norm is not None else math.inf
    gradient_is_usual = capsule.high_norm is not None and norm <= 2 * capsule.high_norm
    if high < _UNUSUAL * max(usual, 1e-12) or not gradient_is_usual:
        return None
    said = [
        f"{named(worst, len(capsule.samples))}: its loss is {number(high)} (median "
        f"{number(usual)}), and the gradient is of usual size.",
        *_worst_token(worst),
        "Check its label.",
    ]
    return " ".join(said)


def _undetermined(capsule: Capsule) -> str:
    if not capsule.samples:
        return "the samples were not taken apart, and nothing before the step stands out."
    shares = [one.share for one in capsule.samples if one.share is not None]
    if capsule.follows is not None:
        return (
            f"it follows the spike of step {capsule.follows}, which no sample made: see that one."
        )
    unusual = _unusual_before(capsule)
    if len(unusual) > _UNUSUAL_BEFORE:
        return (
            f"gradient or loss were unusual already in {len(unusual)} of the {_BEFORE} steps "
            f"before, first at step {unusual[0]}: what made them so came before this step."
        )
    if not shares:
        return "nothing before the step stands out; the parts of the samples are not known."
    return (
        f"no sample stands out (the largest share is {percent(min(1.0, max(0.0, max(shares))))} "
        f"of {plural(len(shares), 'sample')}), and neither does anything before the step."
    )
