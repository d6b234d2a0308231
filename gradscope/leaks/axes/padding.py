"""Judges whether the content or the amount of padding changes other positions."""

from __future__ import annotations

from typing import Any

import torch

from gradscope.leaks.axes.mask import kept_places, trial_of
from gradscope.leaks.changes import (
    Change,
    Kept,
    Layout,
    Outputs,
    change,
    judged_outputs,
    ordered,
    tried,
    unless_rounding,
    with_positions,
)
from gradscope.leaks.first_call import (
    Around,
    Run,
    Trial,
    clean,
    cropped,
    doubtful,
    leak,
    not_judged,
)
from gradscope.leaks.forwards import Forwards, Tensors, detached, widened
from gradscope.leaks.meaning import CONSTANT, HIDDEN, LENGTHS, MASK
from gradscope.leaks.subject import Subject, half
from gradscope.records.leaks import AxisResult
from gradscope.running.rerun import StepFailed

_ADVICE = "mask the padding wherever positions are mixed: attention, pooling, normalisation"

#: Number of contents to try for one row: a maximum, for example, seldom depends on its padding.
_ROWS = 7


def judge(subject: Subject) -> AxisResult:
    """Judge padding: padded places get other content; then rows get less padding."""
    rows = subject.rows
    hidden = subject.mask is not None and subject.mask.role == HIDDEN
    if (subject.mask is None or hidden) and rows.padding is None:
        why = "no input is a mask or a length, and no token is known to be padding"
        return not_judged("padding", why, "say which it is: `--padding 0`")
    if subject.masks_fail:
        return not_judged("padding", f"the model fails on masked rows: {subject.masks_fail}")
    content = ""
    if subject.mask is not None and not hidden:
        ends = [one for one in subject.masked if one.kind != "inside"]
        if not subject.hides or not ends:
            return not_judged("padding", "the mask belongs to no input that could be padded")
        kept = kept_places(subject, ends)
        outputs = subject.gradients.outputs
        subject.forwards.remember(rows.base, outputs)
        found: Change | None = None
        if judged_outputs(outputs, subject.layout, kept):
            found = tried(subject.forwards, rows.base, subject.changed, subject.layout, kept)
            content = "other content in padded places changes no bit; "
        elif subject.pooled:
            return not_judged("padding", "no output has an entry for each position or sample")
        if found is not None and found.doubt:
            return doubtful("padding", found)
        if found is not None:
            sides = sorted({one.kind for one in ends if bool(found.rows[one.row])})
            return leak(
                subject,
                "padding",
                "lets padding change positions without padding",
                found,
                trial_of(subject, ends, found),
                reach=f"padding on the {' and the '.join(sides)}",
                advice=_ADVICE,
            )
    return _of_amount(subject, content)


def _of_amount(subject: Subject, content: str) -> AxisResult:
    """Judge whether less padding on the right changes outputs that are not padded."""
    length = subject.positions
    of_main = subject.mask is None or subject.hidden.shape[1] == length
    why = "the amount of padding was not changed: "
    found: Change | None = None
    if length < 3 or not of_main:
        why += "the mask is not the main input's" if length >= 3 else "the sequence is too short"
    elif not subject.rows.tiled:
        why += "the model takes no batch of another size"
    else:
        try:
            found = _fewer(subject, half(length))
            why = "less padding changes no output by more than rounding"
        except StepFailed:
            why += "the model takes sequences of one length only"
    if found is None and why.startswith("the amount") and not content:
        return not_judged("padding", why)
    if found is None:
        return clean("padding", f"{content}{why}")
    if found.doubt:
        return doubtful("padding", found)
    words = "gives another result if there is more padding"
    trial = _trial(subject, half(length))
    reach = "the amount of padding"
    return leak(subject, "padding", words, found, trial, reach=reach, advice=_ADVICE)


def _side(subject: Subject) -> str:
    """Return the side on which the batch is padded; the right side without padding."""
    kinds = [one.kind for one in subject.masked]
    return "left" if "left" in kinds and "right" not in kinds else "right"


def _fewer(subject: Subject, real: int) -> Change | None:
    """Return the first change between a padded batch and the same rows without padding."""
    known = _in_base(subject, real) if subject.causal else None
    count = _ROWS if known is None else 1
    padded, short = _pair(subject, real, count)
    long_layout, short_layout = _layouts(subject, real, count)

    def pair(forwards: Forwards) -> tuple[Outputs, Outputs]:
        wide = forwards is not subject.forwards
        one, other = (widened(t) if wide else t for t in (padded, short))
        with_padding = known if known is not None and not wide else forwards.again(one)
        without = forwards.again(other)
        like = with_positions(with_padding, long_layout, without, short_layout)
        return (
            ordered(with_padding, long_layout, real, _side(subject), like),
            ordered(without, short_layout, real, like=like),
        )

    layout = Layout(count, real)
    kept = Kept(
        torch.ones(count, real, dtype=torch.bool, device="cpu"),
        torch.ones(count, dtype=torch.bool, device="cpu"),
    )
    found = change(*pair(subject.forwards), layout, kept)
    return unless_rounding(subject.forwards, found, pair, layout, kept, shapes=True)


def _layouts(subject: Subject, real: int, count: int) -> tuple[Layout, Layout]:
    long = Layout.of(subject.meaning, count)
    return long, Layout(long.rows, real, long.batch, long.time)


def _in_base(subject: Subject, real: int) -> Outputs | None:
    """Return the outputs of a row of the base with this padding; None without such a row."""
    batch = subject.layout.batch
    for one in subject.masked:
        if one.kind == _side(subject) and int((~one.where).sum()) == real:
            return {
                path: t.narrow(batch, one.row, 1)
                for path, t in subject.gradients.outputs.items()
                if t.dim() > batch and t.size(batch) == subject.rows.count
            }
    return None


def _pair(subject: Subject, real: int, count: int) -> tuple[Tensors, Tensors]:
    """Return padded rows with several contents, and the same rows without padding."""
    meaning, rows, length = subject.meaning, subject.rows, subject.positions
    base = subject.tiled(count)
    others = torch.arange(count, device="cpu") > 0
    for one in meaning.sources:
        if count > 1 and one.batch is not None:
            base[one.path] = rows.changed(one, others, base)
    start = length - real if _side(subject) == "left" else 0
    end = 0 if start else real
    padded, short = dict(base), dict(base)
    for one in meaning.given:
        tensor = base[one.path]
        if one.role == LENGTHS:
            padded[one.path] = short[one.path] = torch.full_like(tensor, real)
        elif one.role == CONSTANT:
            for dim in range(tensor.dim()):
                if tensor.size(dim) == length:
                    short[one.path] = short[one.path].narrow(dim, start, real)
        elif one.time is not None and tensor.size(one.time) == length:
            short[one.path] = tensor.narrow(one.time, start, real)
            fill: Any = subject.hole if one.role == MASK else rows.padding
            if one.role == MASK or (one in meaning.sequences and fill is not None):
                padded[one.path] = tensor.clone()
                padded[one.path].narrow(one.time, end, length - real).fill_(fill or 0)
    return padded, short


def _trial(subject: Subject, real: int) -> Trial:
    """Compare the short rows first: outputs that they share must not change with padding."""
    count, side = subject.few, _side(subject)
    padded, short = _pair(subject, real, count)
    long_layout, short_layout = _layouts(subject, real, count)

    found = [subject.forwards.outputs(t) for t in (padded, short)]
    like = with_positions(found[0], long_layout, found[1], short_layout)

    def run(tensors: Tensors, layout: Layout) -> Run:
        def one(forwards: Forwards, around: Around) -> Outputs:
            outputs = forwards.run(tensors, lambda out, step: detached(out), around)
            return ordered(outputs, layout, real, side, like)

        return one

    kept = Kept(
        torch.ones(count, real, dtype=torch.bool, device="cpu"),
        torch.ones(count, dtype=torch.bool, device="cpu"),
    )
    runs = run(short, short_layout), run(padded, long_layout)
    pairing = cropped(subject.positions, real, side)
    return Trial(*runs, Layout(count, real), kept, pairing=pairing, exact=False)
