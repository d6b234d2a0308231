"""Finds the axes of a model that leak, by brute force: plain PyTorch, no gradscope.

``effects(model, inputs, options)`` has each axis that can be judged, and the largest change of an
output that must not have changed. Nothing here is clever: every place is changed, one at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import nn

Inputs = dict[str, torch.Tensor]

LABELS = {"labels", "target", "targets"}
HIDDEN = {"bool_masked_pos", "mask_time_indices"}
PADDED = {"attention_mask", "lengths"}
DOCUMENTS = {"document_ids", "seq_idx"}
#: What a stream of data is not.
ROLES = LABELS | HIDDEN | PADDED | DOCUMENTS | {"position_ids", "prefix_length"}
TRIALS = 2


def effects(model: nn.Module, inputs: Inputs, options: dict[str, object]) -> dict[str, float]:
    axis = dict(options.get("axis", {}))
    time, batch = axis.get("time", 1), axis.get("batch", 0)
    found = {"batch": max([0.0, *_batch(model, inputs, batch)])}
    if DOCUMENTS & inputs.keys():
        found["documents"] = max(_documents(model, inputs))
    if options.get("causal"):
        found["time"] = max(_time(model, inputs, time))
    if PADDED & inputs.keys() or "padding" in options:
        found["padding"] = max(_padding(model, inputs, options.get("padding")))
    if HIDDEN & inputs.keys():
        found["mask"] = max(_mask(model, inputs))
    if LABELS & inputs.keys():
        found["label"] = max(_label(model, inputs))
    if "order" in axis:
        found["order"] = max(_order(model, inputs, axis["order"]))
    if "use_cache" in inspect.signature(model.forward).parameters:
        found["cache"] = max(_cache(model, inputs))
    return found


def output(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    with torch.no_grad():
        return _logits(model(**inputs))


def _logits(out: object) -> torch.Tensor:
    if isinstance(out, dict):
        return out["logits"]
    return out[0] if isinstance(out, tuple) else out


def _change(before: torch.Tensor, after: torch.Tensor) -> float:
    return float((before - after).abs().max()) if before.numel() else 0.0


def _streams(inputs: Inputs) -> list[str]:
    return [name for name in inputs if name not in ROLES]


def _others(values: torch.Tensor, trial: int) -> torch.Tensor:
    """Other values than these, in their range: of tokens each is another token."""
    generator = torch.Generator().manual_seed(trial)
    if values.dtype.is_floating_point:
        return values + 1.5 * torch.randn(values.shape, generator=generator)
    known = values.unique()
    place = torch.searchsorted(known, values)
    step = torch.randint(1, len(known), values.shape, generator=generator)
    return known[(place + step) % len(known)]


def _changed(inputs: Inputs, names: list[str], where: torch.Tensor, trial: int) -> Inputs:
    """The named inputs changed where `where` says, which is as long as their first dimensions."""
    new = dict(inputs)
    for name in names:
        old = inputs[name]
        place = where.reshape(*where.shape, *[1] * (old.dim() - where.dim()))
        new[name] = torch.where(place, _others(old, trial), old)
    return new


def _time(model: nn.Module, inputs: Inputs, dim: int) -> Iterator[float]:
    """Each step is changed; outputs before it stay. A shorter output has steps of its own."""
    streams = [name for name in _streams(inputs) if name == "tgt"] or _streams(inputs)
    before = output(model, inputs)
    length = inputs[streams[0]].shape[dim]
    steps = before.shape[dim]
    prefix = int(inputs["prefix_length"].max()) if "prefix_length" in inputs else 0
    for at in range(max(1, prefix), length):
        where = torch.zeros(inputs[streams[0]].shape[: dim + 1], dtype=torch.bool)
        where.select(dim, at).fill_(True)
        earlier = -(-at * steps // length)
        for trial in range(TRIALS):
            after = output(model, _changed(inputs, streams, where, trial))
            change = before.narrow(dim, 0, earlier) - after.narrow(dim, 0, earlier)
            if "attention_mask" in inputs:  # outputs at padding are nobody's
                change = change[inputs["attention_mask"][:, :earlier].bool()]
            yield float(change.abs().max()) if change.numel() else 0.0


def _batch(model: nn.Module, inputs: Inputs, dim: int) -> Iterator[float]:
    before = output(model, inputs)
    names = _streams(inputs) + [name for name in inputs if name in LABELS]
    size = inputs[names[0]].shape[dim]
    for sample in range(size):
        for trial in range(TRIALS):
            new = dict(inputs)
            for name in names:
                where = torch.zeros(inputs[name].shape[: dim + 1], dtype=torch.bool)
                where.select(dim, sample).fill_(True)
                new |= {name: _changed(inputs, [name], where, trial)[name]}
            kept = torch.tensor([other for other in range(size) if other != sample])
            after = output(model, new)
            yield _change(before.index_select(dim, kept), after.index_select(dim, kept))


def _documents(model: nn.Module, inputs: Inputs) -> Iterator[float]:
    """Documents packed in one row must not see one another."""
    for name in DOCUMENTS & inputs.keys():
        before = output(model, inputs)
        for document in inputs[name].unique():
            inside = inputs[name] == document
            for trial in range(TRIALS):
                after = output(model, _changed(inputs, _streams(inputs), inside, trial))
                yield _change(before[~inside], after[~inside])


def _padding(model: nn.Module, inputs: Inputs, value: object) -> Iterator[float]:
    """Other values in padded places, and more of them, on the side where they are."""
    streams = _streams(inputs)
    first = inputs[streams[0]]
    length = first.shape[1]
    if "lengths" in inputs:
        valid = torch.arange(length) < inputs["lengths"][:, None]
    elif "attention_mask" in inputs:
        valid = inputs["attention_mask"].bool()
    else:
        valid = first != value
    before = output(model, inputs)
    tokens = before.dim() == 3 and before.shape[1] == length
    if PADDED & inputs.keys():
        for trial in range(TRIALS):
            after = output(model, _changed(inputs, streams, ~valid, trial))
            yield _change(before[valid], after[valid]) if tokens else _change(before, after)
    left = not valid[:, 0].all()
    for more in (1, 3):
        new = dict(inputs)
        for name in [*streams, *({"attention_mask"} & inputs.keys())]:
            old = inputs[name]
            padding = old.new_zeros(old.shape[0], more, *old.shape[2:])
            new[name] = torch.cat([padding, old] if left else [old, padding], dim=1)
        after = output(model, new)
        if tokens:
            after = after[:, more:] if left else after[:, :length]
            yield _change(before[valid], after[valid])
        else:
            yield _change(before, after)


def _mask(model: nn.Module, inputs: Inputs) -> Iterator[float]:
    (name,) = HIDDEN & inputs.keys()
    before = output(model, inputs)
    for trial in range(TRIALS):
        yield _change(
            before, output(model, _changed(inputs, _streams(inputs), inputs[name], trial))
        )


def _label(model: nn.Module, inputs: Inputs) -> Iterator[float]:
    """No output sees its label; of a sequence those before it may be seen."""
    (name,) = LABELS & inputs.keys()
    labels, before = inputs[name], output(model, inputs)
    for trial in range(TRIALS):
        if labels.dim() == 1:
            where = torch.ones(labels.shape, dtype=torch.bool)
            yield _change(before, output(model, _changed(inputs, [name], where, trial)))
            continue
        for at in range(labels.shape[1]):
            where = torch.zeros(labels.shape, dtype=torch.bool)
            where[:, at] = True
            after = output(model, _changed(inputs, [name], where, trial))
            yield _change(before[:, : at + 1], after[:, : at + 1])
    same = [n for n in _streams(inputs) if torch.equal(inputs[n], labels)]
    if labels.dim() == 2 and same:
        yield from _paired(model, inputs, name, same)


def _paired(model: nn.Module, inputs: Inputs, name: str, same: list[str]) -> Iterator[float]:
    """Labels that are also inputs: no label is compared with an output that read it."""
    before = output(model, inputs)
    for at in range(inputs[name].shape[1]):
        where = torch.zeros(inputs[name].shape, dtype=torch.bool)
        where[:, at] = True
        compared = _pull(model, inputs) != _pull(model, _changed(inputs, [name], where, 0))
        after = output(model, _changed(inputs, same, where, 0))
        yield _change(before[compared], after[compared])


def _pull(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The gradient of the loss at the logits."""
    out = model(**inputs)
    (gradient,) = torch.autograd.grad(out["loss"], out["logits"])
    return gradient


def _order(model: nn.Module, inputs: Inputs, dim: int) -> Iterator[float]:
    before = output(model, inputs)
    for trial in range(TRIALS):
        size = inputs[_streams(inputs)[0]].shape[dim]
        order = torch.randperm(size, generator=torch.Generator().manual_seed(trial))
        new = {name: value.index_select(dim, order) for name, value in inputs.items()}
        same = before.dim() > dim + 1 and before.shape[dim] == size
        expected = before.index_select(dim, order) if same else before
        yield _change(expected, output(model, new))


def _cache(model: nn.Module, inputs: Inputs) -> Iterator[float]:
    """All at once, and after a prefix of every length token by token, and in two pieces."""
    full = output(model, inputs)
    (name,) = _streams(inputs)
    tokens = inputs[name]
    for first in range(1, tokens.shape[1]):
        for step in (1, tokens.shape[1] - first):
            pieces = [tokens[:, :first], *tokens[:, first:].split(step, dim=1)]
            past, outs = None, []
            for piece in pieces:
                with torch.no_grad():
                    out = model(**{name: piece}, past_key_values=past, use_cache=True)
                past = out["past_key_values"] if isinstance(out, dict) else out[1]
                outs.append(_logits(out))
            yield _change(full, torch.cat(outs, dim=1))
