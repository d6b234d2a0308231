"""Finds the samples to blame for a spike, by the evidence in its capsule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gradscope.records.spike import BatchHistory, Capsule, LaterLoss, SpikeSample
from gradscope.rules._words import number, percent, plural

#: Samples are to blame if at most one in eight samples holds half of the gradient.
_FEW = 8
_HALF = 0.5
#: A part is unusual at this many times the median of the others.
_UNUSUAL = 5.0
#: Without the samples to blame, the gradient is at most this many times its median.
USUAL = 3.0
#: Number of steps after a spike in which another may be its aftermath.
AFTERMATH = 64
#: A step is an aftermath if more than two (second figure) of the 16 steps before it (first figure)
#: are unusual.
BEFORE, UNUSUAL_BEFORE = 16, 2
#: The steps just before are compared with the highest of the earlier ones, without the top one in
#: 20 (first figure). A step more than 8 times as high (second figure) as those just before is not
#: their aftermath.
_OUTLIERS, _ABOVE = 20, 8.0
#: Number of steps before that are needed to know a usual sample.
KNOWN = 32
#: An input is unusual at this many times the largest of the steps before, and at this many robust
#: standard deviations above their median: the score that GS601 takes.
_INPUT, _DEVIATIONS, _SPREAD = 5.0, 7.0, 0.1
#: A loss is unusual at this many times the largest loss of a sample in the steps before. If n
#: losses have an exponential tail, the next exceeds their largest so far with a chance of about
#: 1/n³.
_LOSS = 3.0
#: A loss is also unusual at this many times, if losses scatter little (as those of texts), and it
#: is as many robust standard deviations above their median as an unusual input.
_LOSS_NEAR = 2.5
#: The median of a batch is unusual at this many times the largest of the steps before.
_ALL = 1.5
#: A sample is blamed if its loss is this many times the largest loss of a sample before. The first
#: figure is for a classifier that is sure of another class, and for texts whose loss is also that
#: many deviations above the usual ones. The last is for other losses, such as squares: a square is
#: four times as large where the error is twice as large.
_UNLIKE, _FAR_UNLIKE, _SQUARED_UNLIKE = 2.0, 3.0, 4.0
#: The mean loss of a text has no long tail: it is unusual at this many deviations above the usual
#: largest one, and at this many times the largest before; or at the fewer deviations of the third
#: figure, and at ``_UNLIKE`` times the largest before.
_TEXT_DEVIATIONS, _TEXT, _TEXT_NEAR = 7.0, 1.5, 6.0
#: A classifier is sure of a class if its probability is at least 0.9, and the loss with it is at
#: most this many times the median of the other samples': of naturally hard samples it is unsure.
_SURE, _SURE_LOSS = 3.0, -math.log(0.9)
#: A label stays wrong if some steps later the loss is at least this part of what it was. Then its
#: loss must exceed the largest before by the second factor; by the third, if at least so many
#: samples were asked for before (fourth figure), and at most one in so many stayed wrong (fifth).
_STAYS, _STAYED, MAY_STAY, _ASKED, _RARE = 2 / 3, 1.5, 1.2, 3, 4
#: Rare samples, too, may repeat one value: with fewer steps before than this, their loss must also
#: be unusual.
_MANY = 64
#: A text is unusually long at this many times the longest of the others, and of the steps before.
_LONG = 2.0
#: If no two inputs were equal before, this many equal inputs are unusual, or this part of the
#: batch; if some were, this many times as many.
_COPIES, _COPIED = 3, 8


@dataclass(frozen=True, slots=True)
class Blame:
    """The samples to blame: ``cause`` is "samples" or "labels", ``message`` the evidence."""

    cause: str
    message: str
    samples: tuple[SpikeSample, ...]


def blamed(capsule: Capsule, *, excused: bool) -> Blame | None:
    """Return the samples to blame for a step; None without evidence against any.

    Args:
        capsule: the capsule of the step.
        excused: something else explains the step: then only inputs are evidence.
    """
    found = _nonfinite(capsule)
    if found is not None:
        return found
    odd = _odd(capsule)
    # Once weights have blown up, any sample may make a large gradient, or have a large loss.
    aftermath = is_aftermath(capsule)
    few = None if aftermath else _few(capsule)
    label = None if aftermath or excused or odd else _label(capsule)
    if (capsule.kind == "sample" and label is None) or (capsule.kind == "input" and not odd):
        few = None  # its loss or its input alone is unusual: that must stand out from all before
    if label is not None and few is not None and label.samples[0] not in few[0]:
        return label  # its loss is unlike all before; a large part of the gradient is not
    if not (aftermath or excused or odd or few):
        few = _left_out(capsule)
    if few is not None and (not odd or few[0] in [group for group, _ in odd]):
        rest = [one for one in _known(capsule) if one not in _joined(few)]
        if not excused or _size(few[0][0], rest) > _UNUSUAL:
            return Blame("samples", _of_few(capsule, few), tuple(_joined(few)))
    if odd:
        return Blame("samples", _of_odd(capsule, odd), tuple(_joined(g for g, _ in odd)))
    return label


def ordered(capsule: Capsule, blame: Blame | None) -> tuple[SpikeSample, ...]:
    """Return the samples of a capsule, those to blame first."""
    first = () if blame is None else blame.samples
    return (*first, *(one for one in capsule.samples if one not in first))


def named(
    sample: SpikeSample, samples: Sequence[SpikeSample], others: Iterable[SpikeSample] = ()
) -> str:
    """``sample 7 of 32 (index 91204)``, with its calls if it is among ``others`` too."""
    index = "" if sample.dataset_index is None else f" (index {sample.dataset_index})"
    calls = sorted({sample.call, *(one.call for one in others if one.index == sample.index)})
    of = f" of call {sample.call}" if sample.call else ""
    if calls[1:]:
        of = f", in calls {', '.join(map(str, calls[:-1]))} and {calls[-1]}"
    count = sum(one.call == sample.call for one in samples)
    return f"sample {sample.index} of {count}{of}{index}"


def is_aftermath(capsule: Capsule) -> bool:
    """Return True if a step follows a spike that no sample caused, or unusual steps."""
    return capsule.follows is not None or bool(unusual_before(capsule))


def unusual_before(capsule: Capsule) -> list[int]:
    """Return the steps just before with an unusual gradient or loss; none if they are few."""
    if not capsule.signals:
        return []
    *steps, now = capsule.signals
    found: set[int] = set()
    for figures, usual, own in (
        ([one.loss for one in steps], None, now.loss),
        ([one.gradient_norm for one in steps], capsule.usual_norm, capsule.norm),
        ([one.clipped_norm for one in steps], None, None),
    ):
        known = [one for one in figures if one is not None]
        if own and own > _ABOVE * max((one or 0.0 for one in figures[-BEFORE:]), default=0.0):
            continue  # far above them, it is no aftermath of theirs
        # Noise with long tails, as in a training that fits well, puts many steps far above the
        # median. So the steps just before are compared with the highest of the others.
        others = sorted(one for one in figures[:-BEFORE] if one is not None)
        high = others[-1 - len(others) // _OUTLIERS] if len(others) >= KNOWN else 0.0
        if usual is None:
            usual = median(known) if len(known) >= _FEW else math.inf
        found |= {
            one.step
            for one, figure in zip(steps[-BEFORE:], figures[-BEFORE:], strict=True)
            if (figure or 0.0) > max(USUAL * usual, high) > 0
        }
    return sorted(found) if len(found) > UNUSUAL_BEFORE else []


def has_unusual_input(capsule: Capsule) -> bool:
    """Return True if samples have NaN or Inf in their input, or an input unlike all before."""
    return bool(_odd(capsule)) or any(one.nonfinite == "input" for one in capsule.samples)


def is_unusual_input(largest: float | None, history: BatchHistory) -> bool:
    """Return True if an input is far larger than all inputs of the steps before.

    Args:
        largest: its largest absolute value.
        history: the history of the steps before.
    """
    usual, high = history.usual_input, history.high_input
    if largest is None or not usual or not high or history.steps < KNOWN:
        return False
    spread = max(_SPREAD, history.spread_input or 0.0)
    return largest > _INPUT * high and math.log(largest / usual) > _DEVIATIONS * spread


def is_unusual_loss(
    largest: float | None, middle: float | None, history: BatchHistory, *, sure: bool = False
) -> bool:
    """Return True if one loss of a batch is far larger than those of all samples before.

    Args:
        largest: the largest loss of a sample.
        middle: the median of the samples' losses.
        history: the history of the steps before.
        sure: a classifier is sure of another class, see ``is_sure``.
    """
    high, medians = history.high_loss, history.high_median
    if largest is None or middle is None or high is None or medians is None:
        return False
    # The loss of a hinge is 0 for nearly all samples: the few others differ by any factor.
    if history.loss_steps < KNOWN or middle < 0 or not history.usual_loss:
        return False
    if not largest > (_UNLIKE if sure else _LOSS_NEAR) * high > 0 or largest <= _UNUSUAL * middle:
        return False
    if middle > _ALL * medians:
        return False  # the other samples, too, have larger losses than before
    return sure or largest > _LOSS * high or _loss_deviations(largest, history) > _DEVIATIONS


def _loss_deviations(largest: float, history: BatchHistory) -> float:
    """Return how far a loss is above the usual largest one, in robust deviations of logarithms."""
    above = math.log(largest / (history.usual_loss or math.inf))
    return above / max(_SPREAD, history.spread_loss or 1.0)


def is_unusual_constant(path: str, loss: float | None, history: BatchHistory) -> bool:
    """Return True if a constant input of a sample is evidence: this input was never constant
    before, and the sample's loss is above those of all samples before.

    Args:
        path: the path of the input among the arguments of the call.
        loss: the loss of the sample.
        history: the history of the steps before.
    """
    return path in history.varied and is_larger_loss(loss, history)


def is_larger_loss(loss: float | None, history: BatchHistory) -> bool:
    """Return True if the loss of a sample is above those of all samples before."""
    if loss is None or history.high_loss is None or history.loss_steps < KNOWN:
        return False
    return loss > history.high_loss > 0


def is_unusual_length(length: int | None, history: BatchHistory) -> bool:
    """Return True if a batch has far more tokens to a sample than those of all steps before."""
    return bool(length and history.length and history.steps >= KNOWN) and (
        (length or 0) > _LONG * (history.length or 0)
    )


def are_unusual_copies(
    copies: int | None,
    count: int,
    history: BatchHistory,
    loss: float | None = None,
    middle: float | None = None,
) -> bool:
    """Return True if many inputs of a batch are equal, and far fewer were in the steps before.

    Also True if more are equal than in any step before, and their loss is above those of all
    samples before, while the other samples' losses are as before.

    Args:
        copies: the number of inputs equal to one of them, itself included.
        count: the number of samples in the batch.
        history: the history of the steps before.
        loss: the loss of the copies.
        middle: the median loss of the batch.
    """
    if copies is None or not history.copies or history.steps < KNOWN:
        return False
    many = max(_COPIES, count // _COPIED)
    if copies >= history.copies * many:
        return True
    if middle is None or middle > _ALL * (history.high_median or 0.0):
        return False
    return copies > max(history.copies, many - 1) and is_larger_loss(loss, history)


# ---------------------------------------------------------------- the evidence


def _nonfinite(capsule: Capsule) -> Blame | None:
    """Return the few samples with NaN or Inf; a mixing module spreads these only later."""
    count = len(capsule.samples)
    for place, what, others in (
        ("input", "its input has NaN or Inf", "the other inputs have none"),
        ("output", "the model returned NaN or Inf for it", "for the others it did not"),
        ("gradient", "the loss sent NaN or Inf back to it", "to the others it did not"),
    ):
        if place != "input" and is_aftermath(capsule):
            return None  # a training that has blown up overflows at one sample first
        bad = [one for one in capsule.samples if one.nonfinite == place]
        if len(bad) > max(1, count // 4) or (bad and count < 2):
            return None
        if bad:
            rest = len({one.index for one in bad}) - 1
            more = f", and {plural(rest, 'more sample')}" if rest else ""
            message = f"{named(bad[0], capsule.samples, bad)}{more}: {what}; {others}."
            return Blame("samples", message, tuple(bad))
    return None


_Group = list[SpikeSample]


def _joined(groups: Iterable[_Group]) -> _Group:
    return [one for group in groups for one in group]


def _groups(samples: Sequence[SpikeSample]) -> list[_Group]:
    """Group the samples with the same inputs."""
    found: dict[tuple[int, int], _Group] = {}
    for one in samples:
        first = one.index if one.copy_of is None else one.copy_of
        found.setdefault((one.call, first), []).append(one)
    return list(found.values())


def _known(capsule: Capsule) -> list[SpikeSample]:
    return [one for one in capsule.samples if one.share is not None and one.gradient_norm]


def _few(capsule: Capsule) -> list[_Group] | None:
    """Return the few samples with most of the gradient, if the gradient without them is usual."""
    known = _known(capsule)
    if len(known) < 2 or capsule.norm is None or capsule.kind == "highest":
        return None
    # If the gradient is not large, the sample with most of it did not cause a spike.
    if capsule.kind != "gradient" and capsule.norm <= (capsule.high_norm or 0.0):
        return None
    groups = sorted(_groups(known), key=lambda g: sum(one.share or 0.0 for one in g), reverse=True)
    held = 0.0
    for k, group in enumerate(groups[: max(1, len(known) // _FEW)], 1):
        held += sum(one.share or 0.0 for one in group)
        rest = _joined(groups[k:])
        if not rest or len(rest) * 2 < len(known):
            return None
        usual = median(one.gradient_norm or 0.0 for one in rest)
        if max(one.gradient_norm or 0.0 for one in group) < _UNUSUAL * usual:
            return None
        if held >= _HALF and not _still_high(capsule, held):
            if _came_before(capsule, group) or _may_be_mixed(capsule, _joined(groups[:k])):
                return None
            return groups[:k]
    return None


def _may_be_mixed(capsule: Capsule, few: _Group) -> bool:
    """Return True if shares are no evidence: a module such as BatchNorm mixes the samples, and the
    gradient without this one sample is not known to be half as large.
    """
    if not capsule.mixing and all(one.norm_without is None for one in capsule.samples):
        return False
    without = few[0].norm_without
    return bool(few[1:]) or without is None or without > (1 - _HALF) * (capsule.norm or 0.0)


def _came_before(capsule: Capsule, group: _Group) -> bool:
    """Return True if only the loss of a step is unusual, and a sample before had nearly as large a
    one: such a step comes with hard samples."""
    if capsule.kind != "loss" or capsule.norm is None or capsule.high_norm is None:
        return False
    loss = max(one.loss or 0.0 for one in group)
    rest = [one for one in _known(capsule) if one not in group]
    losses = [one.loss for one in rest if one.loss is not None]
    before = _largest_before(capsule)
    if capsule.norm > _UNUSUAL * capsule.high_norm or not (loss and losses and before):
        return False
    history = capsule.history
    factor = _unlike(group[0], rest, median(losses), history) if history.usual_loss else 1.0
    return loss <= factor * before


def _left_out(capsule: Capsule) -> list[_Group] | None:
    """Return the one sample of a mixed batch without which the gradient is usual."""
    norms = [one.norm_without for one in capsule.samples if one.norm_without is not None]
    usual, norm = capsule.usual_norm, capsule.norm
    if len(norms) < 4 or not usual or norm is None or norm < _UNUSUAL * usual:
        return None
    least = min(norms)
    found = [one for one in capsule.samples if one.norm_without == least]
    if least > USUAL * usual or _UNUSUAL * least > median(norms) or len(found) > 1:
        return None
    return [found]


def _still_high(capsule: Capsule, held: float) -> bool:
    """Return True if the other samples' part of the gradient is unusually large too."""
    if capsule.usual_norm is None or capsule.norm is None or capsule.kind == "asked":
        return False
    usual = max(USUAL * capsule.usual_norm, capsule.high_norm or 0.0)
    return max(0.0, 1.0 - held) * capsule.norm > usual


def _odd(capsule: Capsule) -> list[tuple[_Group, str]]:
    """Return the few samples whose inputs are unlike all others, each with the difference."""
    history, count = capsule.history, len(capsule.samples)
    # With two samples, each is unlike the other.
    if count < 3:
        return []
    found = []
    for group in _groups(capsule.samples):
        others = [one for one in capsule.samples if one not in group]
        difference = _difference(group, others, history)
        if difference:
            found.append((group, difference))
    few = len(found) <= max(1, count // _FEW) and sum(len(g) for g, _ in found) * 2 <= count
    return found if found and few else _copied(capsule)


def _copied(capsule: Capsule) -> list[tuple[_Group, str]]:
    """Return the sample that fills much of the batch, if far fewer inputs were equal before."""
    history = capsule.history
    group = max(_groups(capsule.samples), key=len)
    count = sum(one.call == group[0].call for one in capsule.samples)
    losses = [one.loss for one in capsule.samples if one.loss is not None]
    middle = median(losses) if losses else None
    if not are_unusual_copies(len(group), count, history, group[0].loss, middle):
        return []
    before = "no two inputs" if history.copies == 1 else f"at most {history.copies} inputs"
    difference = f"their inputs are equal; in the {history.steps} steps before, {before} were"
    if not are_unusual_copies(len(group), count, history):
        difference += ", and no sample's loss was as large"
    return [(group, difference)]


def _difference(group: _Group, others: Sequence[SpikeSample], history: BatchHistory) -> str:
    """Return the difference of the input of a sample and its copies from all others; "" if it is
    usual."""
    sample, *copies = group
    if is_unusual_input(sample.input_max, history):
        return (
            f"its input reaches {number(sample.input_max)}; of the {history.steps} steps before, "
            f"nearly all inputs are below {number(history.high_input)}"
        )
    large = is_larger_loss(sample.loss, history)
    if sample.constant and history.constant == 0 and history.steps >= (KNOWN if large else _MANY):
        return (
            f"its input repeats one value; no other input of this step and the {history.steps} "
            "before does"
        )
    for path in sample.constant_in:
        if is_unusual_constant(path, sample.loss, history):
            return (
                f"its input `{path}` repeats one value; that of no other sample does, of this step "
                f"and the {history.steps} before, and no loss of these is as large"
            )
    if sample.twin is not None and history.twins == 0 and history.steps >= KNOWN:
        return (
            f"its inputs of calls {sample.twin} and {sample.call} are equal; those of no other "
            f"sample are, of this step and the {history.steps} before"
        )
    same_term = any(one.term == sample.term for one in copies) and sample.term is not None
    if same_term and history.copies == 1 and history.steps >= KNOWN:
        return (
            f"one term of the loss compares them, and their inputs are equal; in the "
            f"{history.steps} steps before, no two inputs were"
        )
    lengths = [one.length for one in others if one.length]
    if sample.length and history.length and len(lengths) == len(others):
        if sample.length > _LONG * max(history.length, *lengths):
            return f"it has {sample.length} tokens; the others have at most {max(lengths)}"
        if sample.length == 0 and history.constant == 0:
            return "it has no token"
    return ""


def _label(capsule: Capsule) -> Blame | None:
    """Return the sample whose loss alone is unlike those of all samples before, not its input."""
    known = [one for one in capsule.samples if one.loss is not None]
    if len(known) < 4:
        return None
    groups = sorted(_groups(known), key=lambda g: max(one.loss or 0.0 for one in g), reverse=True)
    worst = groups[0]
    # If several calls get one batch, as in a siamese network, each of them has the sample. If one
    # call gets several batches, several rows have its loss.
    rest = [
        one
        for one in _joined(groups[1:])
        if one.index != worst[0].index and (one.term is None or one.term != worst[0].term)
    ]
    if len(rest) < 3:
        return None
    losses = sorted(one.loss or 0.0 for one in rest)
    usual, high = median(losses), worst[0].loss or 0.0
    history = capsule.history
    predicted = worst[0].predicted_loss
    if predicted is not None and high <= predicted:
        return None  # the model predicts this label
    sure = is_sure_of_another_class(worst[0], rest)
    stays = _stayed_wrong(worst[0], usual, capsule)
    unlike = (
        is_unusual_loss(high, usual, history, sure=sure)
        or (worst[0].token is not None and is_unusual_text(high, usual, history))
    ) and high > _unlike(worst[0], rest, usual, history) * _largest_before(capsule)
    unlike = (unlike or stays) and losses[-1] <= max(history.high_loss or 0.0, high / _UNLIKE)
    has_history = history.loss_steps >= KNOWN and (history.usual_loss or 0.0) > 0
    larger = high > _LOSS * (history.high_loss or 0.0) and high > _UNLIKE * _largest_before(capsule)
    gradient_is_usual = (
        capsule.kind == "loss"
        and (larger or not has_history)
        and capsule.high_norm is not None
        and len(worst) * high >= sum(losses)
        and (math.inf if capsule.norm is None else capsule.norm) <= 2 * capsule.high_norm
        and high >= _UNUSUAL * max(usual, 1e-12)
    )
    if not (unlike or gradient_is_usual):
        return None
    steps, most = history.loss_steps, history.high_loss
    if stays:
        steps, most = capsule.step - capsule.signals[0].step, _largest_before(capsule)
    before = f"; in the {steps} steps before, no sample's is above {number(most)}"
    evidence = before if unlike else ", and the gradient is of usual size"
    parts = [
        f"{_which([worst], capsule)}: its loss is {number(high)} "
        f"(median {number(usual)}){evidence}.",
        *_worst_token(worst[0]),
        *([] if predicted is None else [f"With another label it would be {number(predicted)}."]),
        *_later(worst[0], capsule),
        "Its input is of usual size: check its label.",
    ]
    return Blame("labels", " ".join(parts), tuple(worst))


def stays_wrong(loss: float, later: LaterLoss) -> bool:
    """Return True if a classifier is still as sure of the same other class than a sample's label.

    Args:
        loss: the loss of the sample in its own step.
        later: what the model said of it some steps later.
    """
    return later.same and later.loss >= _STAYS * loss and later.predicted_loss <= _SURE_LOSS


def _stayed_wrong(sample: SpikeSample, middle: float, capsule: Capsule) -> bool:
    """Return True if a label stayed wrong, and the loss is above those of all steps before."""
    later, loss = sample.later, sample.loss or 0.0
    known = [one for one in capsule.signals[:-1] if one.sample_loss is not None]
    if later is None or not stays_wrong(loss, later) or len(known) < _MANY:
        return False
    if loss <= _UNUSUAL * middle or middle > _ALL * (capsule.history.high_median or 0.0):
        return False
    rare = later.asked >= _ASKED and _RARE * later.stayed <= later.asked
    return loss > (MAY_STAY if rare else _STAYED) * _largest_before(capsule)


def _later(sample: SpikeSample, capsule: Capsule) -> list[str]:
    """Return a sentence on what the model said of a sample some steps later."""
    later = sample.later
    if later is None or not stays_wrong(sample.loss or 0.0, later):
        return []
    return [
        f"{plural(later.step - capsule.step, 'step')} later, after the model was trained on it, "
        f"its loss is still {number(later.loss)}, and {number(later.predicted_loss)} with the "
        "same other label."
    ]


def _largest_before(capsule: Capsule) -> float:
    """Return the largest loss of a sample in the steps before; 0 if none is known.

    With long-tailed noise, larger losses came earlier.
    """
    return max((one.sample_loss or 0.0 for one in capsule.signals[:-1]), default=0.0)


def is_unusual_text(loss: float | None, middle: float | None, history: BatchHistory) -> bool:
    """Return True if the mean loss of a text's tokens is far above those of all texts before.

    Args:
        loss: the mean loss.
        middle: the median of the other texts'.
        history: of the steps before.
    """
    high, medians = history.high_loss, history.high_median
    if loss is None or middle is None or not history.usual_loss or high is None:
        return False
    if history.loss_steps < KNOWN or medians is None or middle > _ALL * medians:
        return False
    far = _loss_deviations(loss, history)
    if loss > _UNLIKE * high and far > _TEXT_NEAR:
        return True
    return loss > _TEXT * high and far > _TEXT_DEVIATIONS


def _unlike(
    sample: SpikeSample, rest: Sequence[SpikeSample], middle: float, history: BatchHistory
) -> float:
    """Return the factor by which the loss of a sample must exceed the largest loss before."""
    deviations = _loss_deviations(sample.loss or 0.0, history)
    if sample.token is not None and is_unusual_text(sample.loss, middle, history):
        return _TEXT if deviations > _TEXT_DEVIATIONS else _UNLIKE
    if sample.predicted_loss is not None:
        return _UNLIKE if is_sure_of_another_class(sample, rest) else _FAR_UNLIKE
    far = deviations > _DEVIATIONS
    if sample.token is not None:
        return _UNLIKE if far else _FAR_UNLIKE
    return _FAR_UNLIKE if far else _SQUARED_UNLIKE


def is_sure_of_another_class(sample: SpikeSample, rest: Sequence[SpikeSample]) -> bool:
    """Return True if a classifier predicts another class than the label, as sure as usual."""
    return is_sure(sample.loss, sample.predicted_loss, [one.predicted_loss for one in rest])


def is_sure(loss: float | None, predicted: float | None, others: Sequence[float | None]) -> bool:
    """Return True if a classifier is sure of another class than a sample's label.

    Args:
        loss: the sample's loss.
        predicted: its loss with the class that the model predicts; None if unknown.
        others: the same of the other samples.
    """
    if predicted is None or loss is None or predicted > _SURE_LOSS or loss <= predicted:
        return False
    known = [one for one in others if one is not None]
    return bool(known) and predicted <= _SURE * median(known)


# ---------------------------------------------------------------- the sentences


def _which(groups: Sequence[_Group], capsule: Capsule) -> str:
    """``sample 7 of 32 (index 91204) and its copy 9 and 2 more (3, 5)``.

    A sample of several calls counts once.
    """
    first, *rest = groups
    which = named(first[0], capsule.samples, [one[0] for one in rest])
    if len(first) > 1:
        copies = ", ".join(str(one.index) for one in first[1:4])
        words = "its copy" if len(first) == 2 else f"its {len(first) - 1} copies"
        which += f" and {words} {copies}{', …' if first[4:] else ''}"
    others = list(dict.fromkeys(one[0].index for one in rest if one[0].index != first[0].index))
    if others:
        shown = ", ".join(map(str, others[:3]))
        which += f" and {len(others)} more ({shown}{', …' if others[3:] else ''})"
    return which


def _of_few(capsule: Capsule, few: Sequence[_Group]) -> str:
    blamed_ones = _joined(few)
    first, rest = few[0][0], [one for one in _known(capsule) if one not in blamed_ones]
    held = sum(one.share or 0.0 for one in blamed_ones)
    which = _which(few, capsule)
    usual = median(one.gradient_norm or 0.0 for one in rest)
    ratio = (first.gradient_norm or 0.0) / usual if usual else math.inf
    times = f"{number(ratio)} times the median sample's" if usual else "the others have none"
    parts = [
        f"{which}: {percent(min(max(held, 0.0), 1.0))} of the gradient; its gradient norm is "
        f"{number(first.gradient_norm)}, {times}.",
        *(
            [f"Without it, the batch's gradient norm is {number(first.norm_without)}."]
            if first.norm_without is not None
            else []
        ),
        *_loss_and_input(first, rest),
    ]
    return " ".join(parts)


def _of_odd(capsule: Capsule, odd: Sequence[tuple[_Group, str]]) -> str:
    group, difference = odd[0]
    which = _which([one for one, _ in odd], capsule)
    parts = [f"{which}: {difference}."]
    share = sum(one.share or 0.0 for one in group)
    if group[0].share is not None:
        parts.append(f"It holds {percent(min(1.0, max(0.0, share)))} of the gradient.")
    return " ".join(parts)


def _loss_and_input(first: SpikeSample, rest: Sequence[SpikeSample]) -> list[str]:
    parts = []
    losses = [one.loss for one in rest if one.loss is not None]
    if first.loss is not None and losses:
        parts.append(f"Its loss is {number(first.loss)} (median {number(median(losses))}).")
    parts += _worst_token(first)
    size = _size(first, rest)
    if not math.isnan(size):
        if size > _UNUSUAL:
            parts.append(f"Its input is {number(size)} times as large as the median.")
        elif size * _UNUSUAL < 1:
            parts.append("Its input is nearly empty.")
        elif first.loss is not None and losses and first.loss > _UNUSUAL * median(losses):
            parts.append("Its input is of usual size: check its label.")
    return parts


def _size(sample: SpikeSample, others: Sequence[SpikeSample]) -> float:
    """Return the ratio of its input's size to the others' median; NaN if unknown."""
    scales = [one.input_rms for one in others if one.input_rms]
    if sample.input_rms is None or not scales:
        return math.nan
    return sample.input_rms / median(scales)


def _worst_token(sample: SpikeSample) -> list[str]:
    """Return a sentence on the token with the largest loss, if it is unusual."""
    token = sample.token
    if token is None or token.median is None or token.loss < _UNUSUAL * token.median:
        return []
    return [
        f"Its token {token.position} (target {token.target}) has a loss of {number(token.loss)} "
        f"(median of its tokens {number(token.median)})."
    ]
