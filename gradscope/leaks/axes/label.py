"""Does what is predicted see the label?"""

from __future__ import annotations

import torch

from gradscope.leaks.changes import Kept, judged_outputs, tried
from gradscope.leaks.findings import clean, doubtful, leak, not_judged
from gradscope.leaks.meaning import LABELS, Given
from gradscope.leaks.rows import Tensors, tile, unmasked
from gradscope.leaks.subject import Subject
from gradscope.leaks.trials import Trial
from gradscope.records.leaks import AxisResult

_ADVICE = "compute the prediction without the label; of teacher forcing, from the labels before it"


def judge(subject: Subject) -> AxisResult:
    """Labels get other values: the outputs may not change, but for a decoder's later ones."""
    labels = subject.meaning.of(LABELS)
    if not labels:
        return not_judged("label", "no input is a label")
    rows, layout = subject.rows, subject.layout
    outputs = subject.gradients.outputs
    subject.forwards.remember(rows.base, outputs)
    everything = _everything(subject, rows.count)
    if not judged_outputs(outputs, layout, everything):
        return not_judged("label", "no output has an entry for each position or sample")
    changed = _changed(subject, labels, rows.base)
    found = tried(subject.forwards, rows.base, changed, layout, everything)
    if found is None:
        return clean("label", "the outputs keep every bit when the labels change")
    if found.doubt:
        return doubtful("label", found)
    where = None
    if all(one.time is not None for one in labels) and found.where is not None:
        cut = subject.positions // 2
        later = _changed(subject, labels, rows.base, start=cut)
        places = torch.zeros(rows.count, subject.positions, dtype=torch.bool)
        places[:, : cut + 1] = True
        own = tried(subject.forwards, rows.base, later, layout, Kept(places, None))
        if own is None:
            message = "an output sees the labels before it, as teacher forcing does, and no others"
            return AxisResult("label", "clean", message, finite=False)
        found, where = own, cut
    return leak(
        subject,
        "label",
        "lets the prediction see its label",
        found,
        _trial(subject, labels, where),
        reach="the label",
        advice=_ADVICE,
    )


def _everything(subject: Subject, count: int) -> Kept:
    places = None
    if subject.positions:
        places = torch.ones(count, subject.positions, dtype=torch.bool)
    return Kept(places, torch.ones(count, dtype=torch.bool))


def _changed(
    subject: Subject, labels: list[Given], base: Tensors, start: int | None = None
) -> Tensors:
    """Other labels, of sequences from a position on."""
    new = {}
    for one in labels:
        tensor = base[one.path]
        other = subject.rows.other_label(tensor)
        if start is not None and one.time is not None:
            other = other.clone()
            other.narrow(one.time, 0, start).copy_(tensor.narrow(one.time, 0, start))
        new[one.path] = other
    return {**base, **new}


def _trial(subject: Subject, labels: list[Given], start: int | None) -> Trial | None:
    """Few rows; of sequences the labels from a position on, else all."""
    rows = subject.rows
    count = subject.few if rows.tiled else rows.count
    base = unmasked(subject.meaning, tile(subject.meaning, count)) if rows.tiled else rows.base
    changed = _changed(subject, labels, base, start)
    every = torch.ones(count, dtype=torch.bool)
    beside = dict(base)  # a result that does not differ here is made of labels alone
    for one in subject.meaning.sources:
        if one.batch is not None:
            beside[one.path] = rows.changed(one, every, base)
    if start is None:
        kept = _everything(subject, count)
        none = torch.zeros(0, dtype=torch.bool)
        return Trial.of(subject, base, changed, kept, none, count, beside=beside)
    places = torch.zeros(count, subject.positions, dtype=torch.bool)
    places[:, : start + 1] = True
    dirty = torch.arange(subject.positions) > start  # from the next position on it may be seen
    kept = Kept(places, None)
    return Trial.of(subject, base, changed, kept, dirty, count, slack=2, beside=beside)
