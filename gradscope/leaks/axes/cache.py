"""Judges whether step-by-step decoding with a cache equals the full forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from gradscope.leaks.changes import Change, Kept, Layout, Outputs, change, ordered, unless_rounding
from gradscope.leaks.first_call import Around, Trial, clean, doubtful, last_of, leak, not_judged
from gradscope.leaks.forwards import Forwards, Tensors, detached, widened
from gradscope.leaks.meaning import MASK
from gradscope.leaks.subject import Subject
from gradscope.loading.batches import Batch
from gradscope.records.leaks import AxisResult
from gradscope.running.rerun import StepFailed
from gradscope.running.step import Step

#: Models' names of the argument with the earlier keys and values.
NAMES = ("past_key_values", "cache", "kv_cache", "past", "past_kv", "layer_past", "state")
_ADVICE = "check the positions, the mask and the order of the cached keys at each step"


def cache_argument(called: Callable[..., Any]) -> str | None:
    """Return the model's argument that takes a cache."""
    try:
        parameters = inspect.signature(getattr(called, "forward", called)).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in NAMES if name in parameters), None)


def judge(subject: Subject) -> AxisResult:
    """Decode the first tokens at once and the rest one by one: each output must equal the full
    pass's."""
    name = cache_argument(subject.forwards.workload.called())
    if name is None:
        return not_judged("cache", "the model takes no cache")
    if subject.causal is False or not subject.meaning.sequences or subject.meaning.decoder:
        return not_judged("cache", "only a causal model of one sequence decodes step by step")
    if subject.positions < 4:
        return not_judged("cache", "the sequence has fewer than four positions")
    if not subject.rows.tiled:
        return not_judged("cache", "the model takes no batch of another size")
    count = 2
    base = subject.tiled(count)
    layout = Layout.of(subject.meaning, count)
    steps = min(3, subject.positions // 2) if "cache" in subject.wishes.asked else 1
    start = subject.positions - steps

    known = _in_base(subject, count)

    def pair(forwards: Forwards) -> tuple[Outputs, Outputs]:
        own = base if forwards is subject.forwards else widened(base)
        if known and forwards is subject.forwards:
            full: Outputs = known
        else:
            full = forwards.run(own, lambda output, step: detached(_without_cache(output, name)))
            full = ordered(full, layout, subject.positions)
        stepped = _stepped(forwards, own, name, start, layout)
        stepped_tensors = {path: t for path, t in full.items() if path in stepped and t.dim() == 3}
        return stepped_tensors, {path: stepped[path] for path in stepped_tensors}

    kept = Kept(torch.ones(count, subject.positions, dtype=torch.bool, device="cpu"), None)
    own_layout = Layout(count, subject.positions)
    try:
        one, other = pair(subject.forwards)
    except StepFailed as failure:
        return not_judged("cache", f"a step with the cache failed: {failure.__cause__}")
    except _NoCache:
        return not_judged("cache", "the model returned no cache that it can reuse")
    if not one:
        return not_judged("cache", "no output has an entry for each position")
    found: Change | None = change(one, other, own_layout, kept)
    found = unless_rounding(subject.forwards, found, pair, own_layout, kept, shapes=True)
    if found is None:
        return clean(
            "cache",
            f"{start} tokens at once and {steps} one by one give the same outputs as the full pass",
        )
    if found.doubt:
        return doubtful("cache", found)
    first = _first_off(one, other)
    trial = _trial(subject, base, name, max(first, 1), layout)
    words = "gives another result step by step, with the cache, than in the full pass"
    reach = f"position {first}, of {start} decoded at once and {steps} one by one"
    return leak(subject, "cache", words, found, trial, reach=reach, advice=_ADVICE)


def _in_base(subject: Subject, count: int) -> Outputs:
    """Return the outputs of unmasked rows of the base, under the names of a step's outputs."""
    masked = {one.row for one in subject.masked}
    free = [row for row in range(subject.rows.count) if row not in masked][:count]
    outputs = ordered(subject.gradients.outputs, subject.layout, subject.positions)
    tensors = {path.removeprefix("0") if path == "0" else path: t for path, t in outputs.items()}
    return {path: t[free] for path, t in tensors.items()} if len(free) == count else {}


def _first_off(one: Outputs, other: Outputs) -> int:
    """Return the first position at which two outputs differ by more than rounding."""
    distances = [
        (t.to(torch.float64) - other[path].to(torch.float64)).abs().amax((0, 2))
        for path, t in one.items()
    ]
    distance = torch.stack(distances).amax(0).nan_to_num(0.0)
    return int((distance > 0.01 * distance.max()).nonzero()[0])


def _trial(subject: Subject, base: Tensors, name: str, at: int, layout: Layout) -> Trial:
    """Return a trial: the full pass up to a position, and the cached step that reaches it."""
    length = at + 1
    own = Layout(layout.rows, length, layout.batch, layout.time)
    single = Layout(layout.rows, 1, layout.batch, layout.time)

    def full(forwards: Forwards, around: Around) -> Outputs:
        batch = _part(forwards, base, 0, length)
        found = forwards.run({}, _outputs_of(name), around, batch)
        return {path: t[:, -1:] for path, t in ordered(found, own, length).items() if t.dim() == 3}

    def step(forwards: Forwards, around: Around) -> Outputs:
        begin = _part(forwards, base, 0, at)
        _with_cache(begin, name, None)
        cache = forwards.run({}, lambda out, _: _cache_in(out, name), batch=begin)
        batch = _part(forwards, base, at, length)
        _with_cache(batch, name, cache)
        found = forwards.run({}, _outputs_of(name), around, batch)
        return ordered(found, single, 1)

    assert layout.rows is not None
    kept = Kept(torch.ones(layout.rows, 1, dtype=torch.bool, device="cpu"), None)
    place = Layout(layout.rows, 1)
    return Trial(*(full, step, place, kept), pairing=last_of(length), exact=False, restores=True)


def _outputs_of(name: str) -> Callable[[Any, Step], dict[str, torch.Tensor]]:
    return lambda output, step: detached(_without_cache(output, name))


def _with_cache(batch: Batch, name: str, cache: Any) -> None:
    if name == "past_key_values":
        batch.kwargs["use_cache"] = True
    if cache is not None:
        batch.kwargs[name] = cache


class _NoCache(Exception):
    """The model returned no cache."""


def _stepped(
    forwards: Forwards, base: Tensors, name: str, start: int, layout: Layout
) -> dict[str, torch.Tensor]:
    """Return the outputs of the first tokens and of the single steps, joined along the
    positions."""
    meaning = forwards.meaning
    assert meaning.positions is not None
    bounds = [(0, start), *((n, n + 1) for n in range(start, meaning.positions))]
    cache: Any = None
    parts: list[dict[str, torch.Tensor]] = []
    for begin, end in bounds:
        batch = _part(forwards, base, begin, end)
        _with_cache(batch, name, cache)

        def done(output: Any, step: Step) -> tuple[dict[str, torch.Tensor], Any]:
            return detached(_without_cache(output, name)), _cache_in(output, name)

        outputs, cache = forwards.run({}, done, batch=batch)
        if cache is None:
            raise _NoCache
        own = Layout(layout.rows, end - begin, layout.batch, layout.time)
        parts.append(ordered(outputs, own, end - begin))
    return {
        path: torch.cat([part[path] for part in parts], dim=1)
        for path in parts[0]
        if all(path in part and part[path].dim() == 3 for part in parts)
    }


def _part(forwards: Forwards, base: Tensors, begin: int, end: int) -> Batch:
    """Return the batch from one position up to another; a mask starts at the first position."""
    new = {}
    length = forwards.meaning.positions
    for one in forwards.meaning.given:
        tensor = base[one.path]
        if one.time is not None and tensor.size(one.time) == length:
            first = 0 if one.role == MASK else begin
            tensor = tensor.narrow(one.time, first, end - first)
        new[one.path] = tensor
    batch = forwards.meaning.with_tensors(new)
    # Nothing is masked: some models take the mask of the new tokens only, some of all.
    masks = {one.name for one in forwards.meaning.of(MASK)}
    return Batch(batch.args, {k: v for k, v in batch.kwargs.items() if k not in masks})


def _cache_in(output: Any, name: str) -> Any:
    """Return the cache in a model's output: by its name, or as the last entry of a tuple."""
    for key in (name, *NAMES):
        found = output.get(key) if isinstance(output, dict) else getattr(output, key, None)
        if found is not None:
            return found
    if isinstance(output, tuple | list) and len(output) > 1:
        return output[-1]
    return None


def _without_cache(output: Any, name: str) -> Any:
    if isinstance(output, tuple | list) and not hasattr(output, "_fields") and len(output) > 1:
        return output[0]
    return output
