"""Judges whether a prediction depends on its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradscope.leaks.changes import Kept, Layout, judged_outputs, tried
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, not_judged
from gradscope.leaks.forwards import Tensors, predictions
from gradscope.leaks.meaning import LABELS, Given
from gradscope.leaks.subject import Subject
from gradscope.nesting import find
from gradscope.records.leaks import AxisResult
from gradscope.running.step import Step

_ADVICE = "compute the prediction without its label; with teacher forcing, from earlier labels only"
_SHIFT = "shift the labels: the output at position t is compared with the token at t + 1"


def judge(subject: Subject) -> AxisResult:
    """Judge labels: each row gets another label at one position; outputs up to there must not
    change."""
    labels = subject.meaning.of(LABELS)
    if not labels:
        return not_judged("label", "no input is a label")
    rows = subject.rows
    outputs = subject.gradients.outputs
    subject.forwards.remember(rows.base, outputs)
    layout, places = _layout(subject, labels[0])
    changed = _changed(subject, labels, rows.base, places.where)
    if not judged_outputs(outputs, layout, places.kept):
        return not_judged("label", "no output has an entry for each position or sample")
    found = tried(subject.forwards, rows.base, changed, layout, places.kept)
    if found is None:
        return _paired(subject, labels, changed, layout, places) or clean(
            "label", "no output sees its own label or a later one"
        )
    if found.doubt:
        return doubtful("label", found)
    trial = _trial(subject, labels)
    words = "lets the prediction see its label"
    return leak(subject, "label", words, found, trial, reach="the label", advice=_ADVICE)


@dataclass(frozen=True)
class _Places:
    """Labels to change, as [rows, positions] or [rows], and the outputs that must not change."""

    where: torch.Tensor
    kept: Kept


def _layout(subject: Subject, label: Given, count: int | None = None) -> tuple[Layout, _Places]:
    """Return the layout of the outputs along the label's positions; a decoder's positions are not
    those of the input."""
    rows = subject.rows.count if count is None else count
    own = Layout.of(subject.meaning, rows)
    if label.time is None:
        layout = Layout(own.rows, subject.meaning.positions, own.batch, own.time)
        places = None
        if layout.positions is not None:
            places = torch.ones(rows, layout.positions, dtype=torch.bool, device="cpu")
        every = torch.ones(rows, dtype=torch.bool, device="cpu")
        return layout, _Places(every, Kept(places, every))
    length = label.tensor.size(label.time)
    at = [n % length for n in range(rows)] if count is None else [length // 2] * rows
    where = torch.zeros(rows, length, dtype=torch.bool, device="cpu")
    kept = torch.zeros(rows, length, dtype=torch.bool, device="cpu")
    for row, position in enumerate(at):
        where[row, position] = True
        kept[row, : position + 1] = True
    # An output without positions, a pooled prediction, must not see a label of its sequence.
    every = torch.ones(rows, dtype=torch.bool, device="cpu")
    return Layout(own.rows, length, own.batch, label.time), _Places(where, Kept(kept, every))


def _changed(subject: Subject, labels: list[Given], base: Tensors, where: torch.Tensor) -> Tensors:
    """Return a batch with other labels at these places."""
    new = {}
    for one in labels:
        tensor = base[one.path]
        other = subject.rows.other_label(tensor)
        if where.dim() == 2 and one.time is not None:
            dims = (0, one.time) if one.batch is None else (one.batch, one.time)
            view = [1] * tensor.dim()
            for dim, size in zip(dims, where.shape, strict=True):
                view[dim] = size
            other = torch.where(where.reshape(view).to(tensor.device), other, tensor)
        new[one.path] = other
    return {**base, **new}


def _trial(subject: Subject, labels: list[Given]) -> Trial:
    """Return a trial of a few rows. In sequences one label in the middle changes; else all labels
    change."""
    count, base = subject.small()
    layout, places = _layout(subject, labels[0], count)
    changed = _changed(subject, labels, base, places.where)
    dirty = torch.zeros(0, dtype=torch.bool, device="cpu")
    if places.where.dim() == 2:  # from the next position on it may be read
        dirty = torch.arange(places.where.shape[1], device="cpu") > int(
            places.where[0].nonzero()[0]
        )
    beside = _beside(subject, base, count) if labels[0].time is None else None
    return Trial(base, changed, layout, places.kept, dirty, slack=0, beside=beside)


def _beside(subject: Subject, base: Tensors, count: int) -> Tensors:
    """Return the batch with other inputs: a result that stays equal depends on labels alone."""
    every = torch.ones(count, dtype=torch.bool, device="cpu")
    new = dict(base)
    for one in subject.meaning.sources:
        if one.batch is not None:
            new[one.path] = subject.rows.changed(one, every, base)
    return new


def _paired(
    subject: Subject, labels: list[Given], changed: Tensors, layout: Layout, places: _Places
) -> AxisResult | None:
    """Judge labels that are also inputs: the loss must not compare a label with an output that read
    it.

    The gradient of the loss with respect to the outputs shows the outputs that a label is compared
    with.
    """
    label = labels[0]
    same = [
        one
        for one in subject.meaning.sequences
        if one.tensor.shape == label.tensor.shape and torch.equal(one.tensor, label.tensor)
    ]
    if label.time is None or not same or layout.rows is None:
        return None
    base = subject.rows.base
    pulls = subject.forwards.run(base, _pulled)
    other = subject.forwards.run(changed, _pulled)
    read = {one.path: subject.rows.changed(one, places.where) for one in same}
    found = None
    for path, pull in pulls.items():
        one, two = (layout.by_position(p) for p in (pull, other.get(path, pull)))
        if one is None or two is None:
            continue
        compared = (one != two).any(dim=-1)
        if not bool(compared.any()):
            continue
        kept = Kept(compared.cpu(), None)
        found = tried(subject.forwards, base, {**base, **read}, layout, kept)
        if found is not None and not found.doubt:
            break
    if found is None or found.doubt:
        return None
    trial = _trial(subject, labels)
    count = trial.kept.rows.numel() if trial.kept.rows is not None else 1
    assert isinstance(trial.base, dict)
    beside = _beside(subject, trial.base, count)
    none = torch.zeros(0, dtype=torch.bool, device="cpu")
    trial = Trial(
        *(trial.base, trial.changed, layout, trial.kept, none), beside=beside, proves=False
    )
    words = "compares a label with an output that has read it"
    return leak(subject, "label", words, found, trial, reach="the label", advice=_SHIFT)


def _pulled(output: Any, step: Step) -> dict[str, torch.Tensor]:
    """Return the gradient of the model's own loss at each of its outputs."""
    losses = [t for path, t in find(output, torch.Tensor) if t.dim() == 0 and t.requires_grad]
    targets = [(path, t) for path, t in predictions(output) if t.requires_grad]
    if not losses or not targets:
        return {}
    sent = torch.autograd.grad(
        losses[0], [t for _, t in targets], retain_graph=True, allow_unused=True
    )
    pairs = zip(targets, sent, strict=True)
    return {path: gradient.detach() for (path, _), gradient in pairs if gradient is not None}
