"""Judges every axis of a model, and sorts the results, worst first."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

import torch
from torch import nn

from gradscope import plugins
from gradscope.errors import first_line
from gradscope.leaks.forwards import Forwards, Rows, cuts, tile, unmasked, vocabularies
from gradscope.leaks.meaning import HIDDEN, LENGTHS, MASK, Meaning, read_meaning
from gradscope.leaks.subject import (
    Subject,
    Wishes,
    hole_of,
    kinds_of,
    maps,
    masked_rows,
    with_masks,
)
from gradscope.loading.batches import Batch
from gradscope.loading.workload import Workload
from gradscope.records.leaks import AXES, AxisResult, DependencyMap
from gradscope.running.rerun import StepFailed

#: Axes that are judged where the user asks for them.
ON_DEMAND = ("order",)
#: Attributes that mark a module as causal.
_FLAGS = ("is_causal", "causal", "is_decoder")


@dataclass(frozen=True, slots=True)
class Judged:
    """The results for each axis."""

    axes: tuple[AxisResult, ...]
    maps: tuple[DependencyMap, ...]
    notices: tuple[str, ...]
    forwards: int
    backwards: int


def judge(workload: Workload, wishes: Wishes) -> Judged:
    """Judge all axes of a workload's model, on its first batch.

    Raises:
        OptionError: no input has a requested axis.
        StepFailed: the model raised on its own batch.
    """
    batch = next(iter(workload.batches()))
    batch = _with_mask(workload, batch)
    meaning = read_meaning(workload.model, workload.called(), batch, wishes.axes)
    forwards = Forwards(workload, meaning)
    subject = _subject(forwards, wishes)
    wanted = [axis for axis in AXES if not wishes.only or axis in wishes.only]
    found: dict[str, AxisResult] = {}
    subject.notices += _hidden_by_zeros(workload.model)
    # The batch comes first: the other axes must know if samples depend on one another.
    for axis in sorted(wanted, key=lambda axis: axis != "batch"):
        if axis in ON_DEMAND and axis not in wishes.asked:
            continue
        found[axis] = plugins.load("gradscope.leaks.axes", axis).judge(subject)
    found_maps = maps(subject) if wishes.maps else ()
    if wishes.maps and subject.gradients.reason:
        subject.notices.append(f"no dependency map: {subject.gradients.reason}")
    axes = tuple(found[axis] for axis in AXES if axis in found)
    counts = forwards.forwards, forwards.backwards
    return Judged(axes, found_maps, tuple(subject.notices), *counts)


def _subject(forwards: Forwards, wishes: Wishes) -> Subject:
    """Make the subject and run its first pass: on rows of one sample, or on the batch's own
    rows."""
    meaning = forwards.meaning
    if meaning.samples is not None:
        failed: StepFailed | None = None
        for masks in (True, False):
            subject = _of_rows(forwards, wishes, tiled=True, masks=masks)
            try:
                _ = subject.gradients
            except StepFailed as failure:
                failed = failure  # on rows that are masked, on so many rows, or on its own batch
            else:
                subject.masks_fail = (
                    None if failed is None else first_line(failed.__cause__ or failed)
                )
                return subject
    subject = _of_rows(forwards, wishes, tiled=False)
    _ = subject.gradients
    if meaning.samples is not None:
        only = f"the model takes batches of {meaning.samples} only: axes are judged on these"
        subject.notices.append(only)
    return subject


def _of_rows(forwards: Forwards, wishes: Wishes, *, tiled: bool, masks: bool = True) -> Subject:
    model, meaning = forwards.workload.model, forwards.meaning
    notices: list[str] = []
    causal = wishes.causal
    encoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if causal is None and encoder and not meaning.decoder:
        causal = False  # what is given is the encoder's
    if causal is None and (why := causal_by(model)):
        causal = True
        notices.append(f"time is judged, because {why}")
    mask = next(iter(meaning.of(MASK, LENGTHS, HIDDEN)), None)
    if mask is not None and mask.role == LENGTHS and meaning.positions is None:
        mask = None
    padding = wishes.padding if wishes.padding is not None else _padding(model)
    kinds: tuple[str, ...] = ()
    if mask is not None and masks:
        general = "mask" in wishes.only or _takes_any_mask(model)
        kinds = kinds_of(mask, general=general)
    count, number = _numbers(meaning, 2 * len(kinds), causal=bool(causal) or wishes.maps)
    if not tiled:
        count = meaning.samples or 1
        number = min(number, count // 2) if count > 2 else 0
    base = tile(meaning, count) if tiled else {one.path: one.tensor for one in meaning.given}
    rows = Rows(
        meaning, count, unmasked(meaning, base), tiled, vocabularies(model, meaning), padding
    )
    subject = Subject(
        forwards=forwards,
        rows=rows,
        wishes=wishes,
        causal=causal,
        mask=mask,
        pooled=not (_takes_any_mask(model) and padding is not None),
        notices=notices,
    )
    if mask is not None and number:
        length = (meaning.positions or 0) if mask.time is None else mask.tensor.size(mask.time)
        masked = masked_rows(length, kinds[: (number + 1) // 2], first=count - number)
        if mask.role != LENGTHS:
            subject.hole = hole_of(mask)
        subject.masked = masked
        rows.base = with_masks(rows.base, mask, masked, subject.hole)
        if padding is not None:
            rows.base = {**rows.base, **subject.padded_tokens()}
    return subject


def _takes_any_mask(model: nn.Module) -> bool:
    """Return True if the model's mask may hide any position, as in transformers."""
    return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)


def _numbers(meaning: Meaning, number: int, *, causal: bool) -> tuple[int, int]:
    """Return the number of rows, and the number of these with padding and holes."""
    positions = meaning.positions or 0
    plain = max(len(cuts(positions)), 2) + 1 if causal and positions > 1 else 3
    sizes = {n for one in meaning.given for n in one.tensor.shape}
    while plain + number in sizes:  # a number of rows that is no other size
        plain += 1
    return plain + number, number


def _hidden_by_zeros(model: nn.Module) -> list[str]:
    """Yield the names of parameters of zeros that hide a dependency, such as a gate initialised to
    0."""
    names = [
        name
        for name, p in model.named_parameters()
        if p.device.type != "meta"
        and p.numel()
        and (p.dim() > 1 or re.search(r"gate|gamma|alpha|scale", name.rpartition(".")[2]))
        and not bool(p.detach().any())
    ]
    if not names:
        return []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [
        f"`{names[0]}`{more} is all zeros: it hides leaks in its input. Judge the "
        "model again with trained weights"
    ]


def causal_by(model: nn.Module) -> str | None:
    """Return the evidence that a model is causal; None if there is none."""
    name = type(model).__name__
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} has a decoder"
    if "ForCausalLM" in name or name.endswith("LMHeadModel"):
        return f"{name} is a causal language model"
    if getattr(config, "is_decoder", False):
        return "its config says `is_decoder`"
    for module in model.modules():
        for flag in _FLAGS:
            if getattr(module, flag, None) is True:
                return f"`{type(module).__name__}.{flag}` is set"
        for key, buffer in module.named_buffers(recurse=False):
            if "causal" in key.lower() or _triangular(buffer):
                return f"`{type(module).__name__}` holds a causal mask, `{key}`"
    return None


def _triangular(buffer: torch.Tensor) -> bool:
    """Return True if a buffer masks the future: one value above the diagonal, another below."""
    if buffer.dim() < 2 or buffer.size(-1) != buffer.size(-2) or buffer.size(-1) < 3:
        return False
    if buffer.numel() != buffer.size(-1) ** 2 or buffer.device.type == "meta":
        return False
    square = buffer.reshape(buffer.shape[-2:])
    size = square.size(0)
    above = square[torch.ones(size, size, dtype=torch.bool, device="cpu").triu(1).to(square.device)]
    below = square[torch.ones(size, size, dtype=torch.bool, device="cpu").tril().to(square.device)]
    if bool((above != above[0]).any()) or bool((below != below[0]).any()):
        return False
    return bool(above[0] != below[0])


def _padding(model: nn.Module) -> int | None:
    """Return the padding token of the config or of an embedding."""
    known = getattr(getattr(model, "config", None), "pad_token_id", None)
    if isinstance(known, int):
        return known
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return int(module.padding_idx)
    return None


def _with_mask(workload: Workload, batch: Batch) -> Batch:
    """Return the batch with an ``attention_mask`` of ones, if the model takes a mask and the batch
    has none."""
    called = workload.called()
    try:
        parameters = inspect.signature(getattr(called, "forward", called)).parameters
    except (TypeError, ValueError):
        return batch
    if "attention_mask" not in parameters or "attention_mask" in batch.kwargs:
        return batch
    position = list(parameters).index("attention_mask")
    if position < len(batch.args):
        return batch
    ids = batch.kwargs.get("input_ids")
    if ids is None and batch.args and next(iter(parameters)) == "input_ids":
        ids = batch.args[0]
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        return batch
    mask = torch.ones_like(ids)
    return Batch(batch.args, {**batch.kwargs, "attention_mask": mask}, batch.target)
