"""Judges whether a sample depends on the others of its batch."""

from __future__ import annotations

import torch

from gradscope.leaks.changes import Kept, judged_outputs, moves, tried
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, nonzero, not_judged
from gradscope.leaks.subject import Subject
from gradscope.records.leaks import AxisResult

_ADVICE = "compute each sample from its own entries: check reshapes, and the axes of reductions"


def judge(subject: Subject) -> AxisResult:
    """Judge the batch: all rows but one get other values, and this one must not change."""
    rows, layout = subject.rows, subject.layout
    if subject.meaning.samples is None:
        return not_judged("batch", "no input has a batch axis", "say which it is: `--axis batch=0`")
    if rows.count < 2:
        why = "the batch has one sample, and the model takes no batch of several"
        return not_judged("batch", why, "give a batch of two samples or more")
    control = torch.zeros(rows.count, dtype=torch.bool, device="cpu")
    control[rows.control] = True
    changed = dict(rows.base)
    for one in subject.meaning.sources:
        if one.batch is not None and rows.base[one.path].size(one.batch) == rows.count:
            changed[one.path] = rows.changed(one, ~control)
    places = None
    if layout.positions is not None:
        places = control[:, None].expand(-1, layout.positions)
    kept = Kept(places, control)
    outputs = subject.gradients.outputs
    subject.forwards.remember(rows.base, outputs)
    if not judged_outputs(outputs, layout, kept):
        return not_judged("batch", "no output has an entry for each sample of the batch")
    found = tried(subject.forwards, rows.base, changed, layout, kept)
    sent = subject.gradients.samples
    seen = None if sent is None else _beside(sent, rows.control)
    if found is None and not moves(outputs, subject.forwards.outputs(changed)):
        return not_judged("batch", "no output depends on the input")
    if found is None:
        if seen:
            why = "the gradient reaches other samples, but changing them changes no output"
            return AxisResult("batch", "not-judged", why, finite=False, gradient=True)
        return _by_design(subject) or clean(
            "batch",
            f"a sample's outputs keep every bit when the other {rows.count - 1} change",
            seen,
        )
    if found.doubt:
        return doubtful("batch", found)
    subject.mixes = True
    trial = _trial(subject)
    return leak(
        subject,
        "batch",
        "lets a sample see the others of its batch",
        found,
        trial,
        reach="other samples of the batch",
        gradient=seen,
        advice=_ADVICE,
    )


def _beside(sent: torch.Tensor, control: int) -> bool:
    others = nonzero(sent[None])[0]
    others[control] = False
    return bool(others.any())


def _by_design(subject: Subject) -> AxisResult | None:
    names = [name for name, module in subject.normalisers]
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    message = (
        f"in training `{names[0]}`{more} (BatchNorm) normalises over the batch; in eval mode the "
        "samples are independent"
    )
    return AxisResult(
        "batch",
        "by-design",
        message,
        layer=names[0],
        finite=False,
        gradient=False,
        severity="info",
    )


def _trial(subject: Subject) -> Trial | None:
    """Return a trial of a few samples; all but the middle one change."""
    rows = subject.rows
    count, base = subject.small()
    control = count // 2
    dirty = torch.ones(count, dtype=torch.bool, device="cpu")
    dirty[control] = False
    changed = dict(base)
    for one in subject.meaning.sources:
        if one.batch is not None:
            changed[one.path] = rows.changed(one, dirty, base)
    places = None
    if subject.layout.positions is not None:
        places = (~dirty)[:, None].expand(-1, subject.layout.positions)
    return Trial.of(subject, base, changed, Kept(places, ~dirty), dirty, count, slack=0)
