"""Judges whether output t of a causal model depends on inputs after t."""

from __future__ import annotations

import torch

from gradscope.leaks.changes import Change, Kept, judged_outputs, moves, tried
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, nonzero, not_judged
from gradscope.leaks.forwards import future
from gradscope.leaks.subject import Subject
from gradscope.records.leaks import AxisResult
from gradscope.typeset.numbers import plural

_ADVICE = "mask later positions, or pad on the left only; `--no-causal` if the model may see it"


def judge(subject: Subject) -> AxisResult:
    """Judge time: values after each row's cut are replaced; outputs before the cut must not
    change."""
    meaning, rows, layout = subject.meaning, subject.rows, subject.layout
    if not subject.causal:
        why = "the model is not known to be causal"
        if subject.causal is False:
            why = "the model is not causal: it may see all positions"
            return not_judged("time", why)
        return not_judged("time", why, "judge it with `--causal`")
    if not meaning.sequences or not subject.positions:
        return not_judged("time", "no input has a time axis", "say which it is: `--axis time=1`")
    if subject.positions - subject.prefix < 2:
        return not_judged("time", "the sequence has one position, so no token comes later")
    outputs = subject.gradients.outputs
    subject.forwards.remember(rows.base, outputs)
    kept = _kept(subject, subject.cuts)
    if not judged_outputs(outputs, layout, Kept(kept.places, None)):
        why = f"no output has an entry for each of the {subject.positions} positions"
        return not_judged("time", why)
    if layout.rows is None or rows.count < 3 or subject.mixes:
        found, at = _one_cut_for_all(subject)
    else:
        found, at = tried(subject.forwards, rows.base, subject.changed, layout, kept), None
    seen = _seen(subject)
    if found is None and subject.normalisers:
        found, at = _in_training(subject)
        if found is not None and not found.doubt:
            return _found(subject, found, at, None, training=True)
    if found is None:
        if seen:
            why = "the gradient reaches later inputs, but changing them changes no output"
            return AxisResult("time", "not-judged", why, finite=False, gradient=True)
        if not moves(outputs, subject.forwards.outputs(subject.changed)):
            return not_judged("time", "no output depends on the input")
        number = len([cut for cut in subject.cuts if cut is not None])
        where = "every position" if number >= subject.positions - 1 else f"{number} positions"
        return clean("time", f"outputs up to {where} keep every bit when later inputs change", seen)
    if found.doubt:
        return doubtful("time", found)
    return _found(subject, found, at, seen, training=False)


def _found(
    subject: Subject, found: Change, at: int | None, seen: bool | None, *, training: bool
) -> AxisResult:
    worst = _worst(subject, found) if at is None else at
    ahead = _ahead(subject, found) if at is None else _at_one_cut(found, at)
    reach = f"{plural(ahead, 'token')} ahead"
    words = "lets a position see later ones" + (" in training" if training else "")
    trial = _trial(subject, worst)
    result = leak(
        *(subject, "time", words, found, trial), reach=reach, gradient=seen, advice=_ADVICE
    )
    subject.forwards.training = ()
    return result


def _kept(subject: Subject, at: list[int | None]) -> Kept:
    """Return the outputs up to each row's cut; rows without a cut do not count."""
    places = ~future(subject.rows.count, subject.positions, at)
    for row, cut in enumerate(at):
        if cut is None:
            places[row] = False
    return Kept(places, None)


def _one_cut_for_all(subject: Subject) -> tuple[Change | None, int | None]:
    """Cut all rows at one position, at several in turn, for rows that are not independent."""
    last = subject.positions - 1
    best: tuple[Change | None, int | None] = None, None
    tries = dict.fromkeys((last // 2, last - 1, 0, last // 3))
    for cut in (cut for cut in tries if cut >= subject.prefix - 1):
        found = _cut_all(subject, cut)
        if found is not None and (best[0] is None or best[0].doubt):
            best = found, cut
            if not found.doubt:
                break
    return best


def _cut_all(subject: Subject, cut: int) -> Change | None:
    at: list[int | None] = [cut] * subject.rows.count
    where = future(subject.rows.count, subject.positions, at)
    changed = subject.sequences_differing(where)
    kept = _kept(subject, at)
    return tried(subject.forwards, subject.rows.base, changed, subject.layout, kept)


def _in_training(subject: Subject) -> tuple[Change | None, int | None]:
    """Return the change with BatchNorms in train mode, in which they normalise over the positions
    too, and the cut."""
    forwards, cut = subject.forwards, (subject.positions - 1) // 2
    base = dict(subject.rows.base)  # its own mapping: it runs in another mode
    at: list[int | None] = [cut] * subject.rows.count
    where = future(subject.rows.count, subject.positions, at)
    changed = subject.sequences_differing(where, base)
    forwards.training = tuple(module for _, module in subject.normalisers)
    found = tried(forwards, base, changed, subject.layout, _kept(subject, at))
    if found is None or found.doubt:
        forwards.training = ()
    return found, cut


def _seen(subject: Subject) -> bool | None:
    """Return True if a gradient reaches a later input; None if unknown."""
    sent = subject.gradients.time
    if sent is None:
        return None
    seen = nonzero(sent)
    later = future(subject.rows.count, subject.positions, subject.cuts)
    return bool((seen & later).any())


def _worst(subject: Subject, found: Change) -> int:
    """Return a cut that shows the leak; of several, the middle one."""
    at = [cut for row, cut in enumerate(subject.cuts) if cut is not None and bool(found.rows[row])]
    return at[len(at) // 2] if at else (subject.positions - 1) // 2


def _at_one_cut(found: Change, cut: int) -> int:
    """Return how far ahead an output reads at least, with all rows cut at one position."""
    if found.where is None or not bool(found.where.any()):
        return 1
    return cut + 1 - int(found.where.any(0).nonzero().min())


def _ahead(subject: Subject, found: Change) -> int:
    """Return how far ahead an output reads at most, from single inputs changed alone."""
    positions = subject.positions
    least = 1
    if found.where is not None:
        for row, cut in enumerate(subject.cuts):
            own = found.where[row].nonzero()
            if cut is not None and own.numel():
                least = max(least, cut + 1 - int(own.min()))
    sent = subject.gradients.time
    if sent is not None:
        later = nonzero(sent) & future(subject.rows.count, positions, subject.cuts)
        for row, cut in enumerate(subject.cuts):
            own = later[row].nonzero()
            if cut is not None and own.numel():
                least = max(least, int(own.max()) - cut)
    return max(least, _alone(subject))


def _alone(subject: Subject) -> int:
    """Return the same from one forward pass that changes one input in each row."""
    rows, positions = subject.rows, subject.positions
    masked = {one.row for one in subject.masked}
    free = [row for row in range(rows.count) if row not in masked]
    step = max(1, -(-(positions - 1) // len(free)))
    single = {
        row: at for n, row in enumerate(free) if (at := positions - 1 - n * step) >= subject.prefix
    }
    where = torch.zeros(rows.count, positions, dtype=torch.bool, device="cpu")
    places = torch.zeros(rows.count, positions, dtype=torch.bool, device="cpu")
    for row, at in single.items():
        where[row, at] = True
        places[row, :at] = True
    changed = subject.sequences_differing(where)
    found = tried(subject.forwards, rows.base, changed, subject.layout, Kept(places, None))
    if found is None or found.where is None or found.doubt:
        return 1
    return max(
        (
            at - int(found.where[row].nonzero().min())
            for row, at in single.items()
            if bool(found.where[row].any())
        ),
        default=1,
    )


def _trial(subject: Subject, cut: int) -> Trial:
    """Return a trial of a few rows, all cut at one position."""
    count, base = subject.small()
    at: list[int | None] = [cut] * count
    where = future(count, subject.positions, at)
    changed = subject.sequences_differing(where, base)
    dirty = torch.arange(subject.positions, device="cpu") > cut
    return Trial.of(subject, base, changed, Kept(~where, None), dirty, count, slack=4)
