"""Judges whether masked tokens between other tokens change the outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.leaks.changes import Change, Kept, judged_outputs, tried
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, not_judged
from gradscope.leaks.meaning import HIDDEN, LENGTHS
from gradscope.leaks.subject import Masked, Subject, with_masks
from gradscope.records.leaks import AxisResult

_ADVICE = "give the mask to every operation that mixes positions"

#: Operations that only move elements: they do not read the content.
_MOVES = frozenset(
    {
        *(".mT", ".T", "transpose", "permute", "movedim", "view", "reshape", "flatten"),
        *("unflatten", "contiguous", "to", "float", "__getitem__", "unsqueeze", "squeeze"),
        *("clone", "detach"),
    }
)


def judge(subject: Subject) -> AxisResult:
    """Judge the mask: masked tokens between others get other content, and unmasked outputs must not
    change."""
    if subject.mask is None or subject.mask.role == LENGTHS:
        return not_judged("mask", "no input is a mask")
    if subject.masks_fail:
        return not_judged("mask", f"the model fails on masked rows: {subject.masks_fail}")
    if not any(one.kind == "inside" for one in subject.masked):
        why = "the mask hides nothing between other tokens"
        return not_judged("mask", why, "judge it all the same: `--only mask`")
    inside = [one for one in subject.masked if one.kind == "inside"]
    if not subject.hides or not inside:
        return not_judged("mask", "the mask fits the positions of no input")
    kept = kept_places(subject, inside)
    outputs = subject.gradients.outputs
    subject.forwards.remember(subject.rows.base, outputs)
    if not judged_outputs(outputs, subject.layout, kept):
        return not_judged("mask", "no output has an entry for each position or sample")
    found = tried(subject.forwards, subject.rows.base, subject.changed, subject.layout, kept)
    if found is None:
        return clean("mask", "other content in masked places changes no bit of the rest")
    if found.doubt:
        return doubtful("mask", found)
    return leak(
        subject,
        "mask",
        "lets masked tokens change the others",
        found,
        trial_of(subject, inside, found),
        reach="masked tokens",
        advice=_ADVICE,
    )


def kept_places(subject: Subject, masked: Sequence[Masked]) -> Kept:
    """Return the unmasked places of these rows; all places if the mask belongs to another input."""
    count, positions = subject.rows.count, subject.positions
    chosen = torch.zeros(count, dtype=torch.bool, device="cpu")
    chosen[[one.row for one in masked]] = True
    places = chosen[:, None].expand(-1, positions or 0).clone()
    # A model may know padding by its token alone: then pooled outputs do not count.
    rows = chosen if subject.pooled else None
    if not positions:
        return Kept(None, rows)
    if subject.hidden.shape[1] == positions and _masks_main(subject):
        places &= ~subject.hidden
    return Kept(places, rows)


def _masks_main(subject: Subject) -> bool:
    """Return True if masked outputs do not count; tokens hidden for prediction do count."""
    if subject.mask is None or subject.mask.role == HIDDEN:
        return False
    main = subject.meaning.sequences
    return any(one in main for one in subject.hides)


def trial_of(subject: Subject, masked: Sequence[Masked], found: Change) -> Trial | None:
    """Return a trial of a few rows, each masked as a row that shows the leak."""
    mask = subject.mask
    shows = [one for one in masked if bool(found.rows[one.row])]
    if mask is None or not shows or not subject.rows.tiled:
        return None
    one = shows[0]
    count = subject.few
    own = tuple(Masked(row, one.kind, one.where) for row in range(count))
    base = with_masks(subject.tiled(count), mask, own, subject.hole)
    where = one.where[None].expand(count, -1)
    changed = subject.differing({source.path: where for source in subject.hides}, base)
    places = None
    if subject.positions:
        places = torch.ones(count, subject.positions, dtype=torch.bool, device="cpu")
        if where.shape[1] == subject.positions and _masks_main(subject):
            places &= ~where
    every = torch.ones(count, dtype=torch.bool, device="cpu") if subject.pooled else None
    kept = Kept(places, every)
    if mask.role == HIDDEN:  # it may not be read: the first result that is mixed with other places
        none = torch.zeros_like(one.where)
        return Trial.of(subject, base, changed, kept, none, count, passes=_MOVES)
    return Trial.of(subject, base, changed, kept, one.where, count)
