"""Judges whether a document depends on another one packed into the same row."""

from __future__ import annotations

import torch

from gradscope.leaks.changes import Kept, Layout, judged_outputs, tried
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, not_judged
from gradscope.leaks.forwards import Tensors
from gradscope.leaks.meaning import DOCUMENTS, Given, values_of
from gradscope.leaks.subject import Subject
from gradscope.records.leaks import AxisResult

_ADVICE = "mask all pairs of positions whose document differs"


def judge(subject: Subject) -> AxisResult:
    """Judge documents: one document per row gets other values; the others must not change."""
    named = [one for one in subject.meaning.of(DOCUMENTS) if one.time is not None]
    if not named:
        return not_judged("documents", "no input assigns a document to each position")
    if subject.positions < 4 or not subject.meaning.sequences:
        return not_judged("documents", "the sequence has fewer than four positions")
    if not subject.rows.tiled:
        return not_judged("documents", "the model takes no batch of another size")
    count = subject.few
    base = _packed(subject, named, count)
    documents = _by_row(named[0], base[named[0].path], count)
    kinds = values_of(documents[0])
    picked = torch.stack([documents[r] == kinds[r % len(kinds)] for r in range(count)])
    changed = subject.sequences_differing(picked, base)
    layout = Layout.of(subject.meaning, count)
    kept = Kept(~picked, None)
    if not judged_outputs(subject.forwards.outputs(base), layout, kept):
        return not_judged("documents", "no output has an entry for each position")
    found = tried(subject.forwards, base, changed, layout, kept)
    if found is None:
        return clean("documents", f"{len(kinds)} documents in a row keep every bit of one another")
    if found.doubt:
        return doubtful("documents", found)
    row = int(found.rows.nonzero()[0])
    where = picked[row][None].expand(count, -1)
    own = subject.sequences_differing(where, base)
    trial = Trial.of(subject, base, own, Kept(~where, None), picked[row], count)
    words, reach = "lets a packed document see another", "other documents of the row"
    return leak(subject, "documents", words, found, trial, reach=reach, advice=_ADVICE)


def _packed(subject: Subject, named: list[Given], count: int) -> Tensors:
    """Return rows with two documents or more: the batch's own, else each row cut into halves."""
    base = subject.tiled(count)
    for one in named:
        tensor = base[one.path]
        assert one.time is not None
        if len(values_of(_by_row(one, tensor, count)[0])) < 2:
            half = tensor.size(one.time) // 2
            tensor = tensor.clone()
            part = tensor.narrow(one.time, half, tensor.size(one.time) - half)
            part.add_(1)
            base[one.path] = tensor
    return base


def _by_row(one: Given, tensor: torch.Tensor, count: int) -> torch.Tensor:
    assert one.time is not None
    if one.batch is None:
        flat = tensor.movedim(one.time, 0).reshape(tensor.size(one.time), -1)[:, 0]
        return flat[None].expand(count, -1)
    return tensor.movedim((one.batch, one.time), (0, 1)).reshape(count, tensor.size(one.time), -1)[
        ..., 0
    ]
