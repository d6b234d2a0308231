"""Splits the gradient of a recorded call by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.reductions import gradient_norms
from gradscope.nesting import find, replaced
from gradscope.per_sample.contributions import SampleGradients, TooSlow, sample_gradients
from gradscope.records.spike import SpikeSample
from gradscope.records.tensors import finite_or_none
from gradscope.training.extra_passes import NeedsOtherRanks
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.nan_detector.replayed_calls import as_it_began, paired, rerun_results
from gradscope.training.replicas import batch_comes_first, batch_size
from gradscope.training.spikes.batch_figures import has_rows

#: Number of parameters named for a sample's gradient, and the least share of its square.
_LAYERS, _PART = 3, 0.1
#: A gradient that differs by this many units of rounding has no other part.
_ROUNDING = 64


@dataclass(frozen=True, slots=True)
class CallSamples:
    """The samples of one call, in their order, and the norm of the gradient that they add up to."""

    samples: list[SpikeSample]
    norm: float | None = None
    mixing: tuple[str, ...] = ()


def samples_of_call(call: RecordedCall, indices: Sequence[int] | None) -> int | None:
    """Return the number of samples of a call: the length of the first axis; None if the samples may
    be on another axis.

    Args:
        indices: the dataset indices of its batch, if known.
    """
    count = batch_size(call.args, call.kwargs)
    if count is None or count < 1:
        return None
    known = indices is not None and len(indices) == count
    return count if known or batch_comes_first(call.module) else None


def taken_apart(
    call: RecordedCall, count: int, scale: float, in_time: Callable[[], bool] = lambda: True
) -> SampleGradients | None:
    """Split a call's gradient by sample, with a replay; None if the replay drew other random
    numbers.

    Args:
        count: the number of its samples.
        scale: the loss scale in the gradients that arrived; the parts are without it.
        in_time: returns False when the allowed time is over.

    Raises:
        NotSeparable: the gradient cannot be split by sample.
        TooSlow: the time was over.
        NeedsOtherRanks: the model waits for other processes.
    """
    outer = _from_outside(call)
    with as_it_began(call) as (module, args, kwargs):

        def forward() -> tuple[Any, torch.Tensor]:
            output = module(*args, **kwargs)
            terms = [
                (root * gradient.to(root.dtype)).sum() / scale
                for root, gradient in _sent(call, output, outer)
            ]
            return output, torch.stack([term.reshape(()) for term in terms]).sum()

        found = sample_gradients(module, forward, count, in_time)
    return None if call.drew else found


def norms_without(
    call: RecordedCall, count: int, scale: float, in_time: Callable[[], bool] = lambda: True
) -> tuple[list[float | None], float | None]:
    """Return the norm of a call's gradient without each sample, and with all, from replays.

    The gradients at the other samples' outputs are those that arrived in the step; a loss that the
    model computes is the loss of the others. None if the forward draws random numbers, or has an
    output without a row for each sample.

    Args:
        count: the number of its samples: each takes one forward and one backward.
        scale: the loss scale in the gradients that arrived.
        in_time: returns False when the allowed time is over.

    Raises:
        TooSlow: the time was over.
    """
    unknown: list[float | None] = [None] * count
    if call.side_effects.draws:
        return unknown, None
    found: list[float | None] = []
    outer = _from_outside(call)
    with as_it_began(call) as (module, args, kwargs), torch.enable_grad():
        trained = [p for p in module.parameters() if p.requires_grad]
        for left_out in (None, *range(count)):
            if not in_time():
                raise TooSlow
            pick = _picker(
                torch.tensor([m for m in range(count) if m != left_out], device="cpu"), count
            )
            given, named = replaced((args, kwargs), torch.Tensor, pick)
            terms = []
            # The replay without the sample has the same outputs in the same order.
            for root, gradient in _sent(call, module(*given, **named), outer):
                sent = pick(gradient)
                if gradient.shape == (count, count) and root.shape[1:] == root.shape[:1]:
                    sent = pick(sent.T).T  # of each with each, as in a contrastive loss
                if sent.shape != root.shape:
                    return unknown, None
                terms.append((root * sent.to(root.dtype)).sum() / scale)
            if not terms:
                return unknown, None
            parts = torch.autograd.grad(torch.stack(terms).sum(), trained, allow_unused=True)
            norms = gradient_norms([g for g in parts if g is not None])
            found.append(finite_or_none(math.hypot(*norms)))
    return found[1:], found[0]


#: The gradients of a call's results, for each backward; None for one that got none from outside.
_Outer = list[list[torch.Tensor | None]]


def _from_outside(call: RecordedCall) -> _Outer | None:
    """Return the gradients that arrived at a call's results from outside of the call, by a replay.

    A result may be computed from another result of the call, as a loss is from the logits. Then the
    gradient that arrives at the logits has a part through the loss, which the replay sends itself.
    None if all gradients that arrived are from outside.
    """
    if sum(edge is not None for _, edge in call.results) < 2:
        return None
    outer: _Outer = []
    with as_it_began(call) as (module, args, kwargs), torch.enable_grad():
        for roots, gradients in paired(call, module(*args, **kwargs)):
            own: list[torch.Tensor | None] = [None] * len(roots)
            inside: dict[int, torch.Tensor] = {}
            # Nodes are numbered as they are made: here the operands of a result come after it.
            left = sorted(range(len(roots)), key=lambda n: _number(roots[n]), reverse=True)
            while left:
                n, *left = left
                gradient = gradients[n].to(roots[n].dtype)
                if n in inside:
                    rest = gradient - inside[n]
                    rounding = _ROUNDING * torch.finfo(rest.dtype).eps
                    if float(rest.norm()) <= rounding * float(gradient.norm()):
                        continue
                    gradient = rest
                own[n] = gradient
                if left:
                    parts = torch.autograd.grad(
                        roots[n], [roots[m] for m in left], gradient,
                        retain_graph=True, allow_unused=True,
                    )  # fmt: skip
                    for m, part in zip(left, parts, strict=True):
                        if part is not None:
                            inside[m] = inside[m] + part if m in inside else part
            outer.append(own)
    return outer


def _number(result: torch.Tensor) -> int:
    """Return the number of the node that made a tensor."""
    node: Any = result.grad_fn
    return int(node._sequence_nr())


def _sent(
    call: RecordedCall, output: Any, outer: _Outer | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each result of a replay with the gradient that arrived at it from outside."""
    for place, (roots, gradients) in enumerate(paired(call, output)):
        found = gradients if outer is None else outer[place]
        for root, gradient in zip(roots, found, strict=True):
            if gradient is not None:
                yield root, gradient


def mixes_samples(call: RecordedCall, count: int) -> bool:
    """Return True if the rows of a call's outputs change without its last sample, from a replay.

    Also True if it has no output with rows, as in a model that returns only its loss. False if the
    forward draws random numbers.
    """
    if call.side_effects.draws or count < 2:
        return False
    with as_it_began(call) as (module, args, kwargs), torch.no_grad():
        full = [t for _, t in find(module(*args, **kwargs), torch.Tensor)]
        pick = _picker(torch.arange(count - 1, device="cpu"), count)
        given, named = replaced((args, kwargs), torch.Tensor, pick)
        fewer = [t for _, t in find(module(*given, **named), torch.Tensor)]
    rows = False
    for one, other in zip(full, fewer, strict=False):
        if not one.is_floating_point() or not has_rows(one, count):
            continue
        rows = True
        if one.shape[1:] != other.shape[1:]:
            return True
        # A kernel may round otherwise for another batch size.
        rounding = math.sqrt(torch.finfo(one.dtype).eps)
        off = float((one[:-1].double() - other.double()).abs().max())
        if off > rounding * float(one.abs().max()):
            return True
    return not rows


def _picker(rows: torch.Tensor, count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that picks these rows of a tensor with a row for each sample."""

    def pick(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != count:
            return tensor
        return tensor[rows.to(tensor.device)]

    return pick


def table(call: RecordedCall, number: int, count: int, found: SampleGradients) -> CallSamples:
    """Return the samples of a call with their parts."""
    samples = [SpikeSample(n, call=number) for n in range(count)]
    split = with_parts(samples, found, input_sizes((call.args, call.kwargs), count))
    return CallSamples(split, finite_or_none(found.norm), found.mixing)


def with_parts(
    samples: Sequence[SpikeSample],
    found: SampleGradients,
    sizes: Sequence[float] | None,
    scale: float = 1.0,
) -> list[SpikeSample]:
    """Return samples with their parts of the gradient and the sizes of their inputs.

    Args:
        samples: the samples of one call, in any order.
        found: the parts of the gradient.
        sizes: the sizes of the inputs, from ``input_sizes``.
        scale: the loss scale in the parts.
    """
    norms, shares, cosines = (t.tolist() for t in (found.norms, found.shares, found.cosines))
    return [
        replace(
            one,
            gradient_norm=finite_or_none(norms[one.index] / scale),
            share=finite_or_none(shares[one.index]),
            cosine=finite_or_none(cosines[one.index]),
            layers=_layers(found, one.index),
            input_rms=None if sizes is None else finite_or_none(sizes[one.index]),
        )
        for one in samples
    ]


def nonfinite_table(call: RecordedCall, number: int, count: int) -> CallSamples:
    """Return the samples of a call; those with NaN or Inf are marked."""
    results = call.alive()
    if results is None:
        try:
            results = rerun_results(call) or []
        except NeedsOtherRanks:
            results = []
    places = {
        "input": [t for _, t in find((call.args, call.kwargs), torch.Tensor)],
        "output": results,
        "gradient": list(arrived(call)),
    }
    where: list[str | None] = [None] * count
    for place in reversed(places):  # the first place counts
        for tensor in places[place]:
            if not (tensor.is_floating_point() and has_rows(tensor, count)):
                continue
            sound = tensor.detach().isfinite().reshape(count, -1).all(1).tolist()
            where = [old if ok else place for old, ok in zip(where, sound, strict=True)]
    return CallSamples([SpikeSample(n, nonfinite=where[n], call=number) for n in range(count)])


def arrived(call: RecordedCall) -> Iterator[torch.Tensor]:
    """Yield the gradients that arrived at a call's results."""
    for several in call.nodes.values():
        for each in several:
            for one in each if isinstance(each, tuple) else (each,):
                if one is not None:
                    yield one


def seen_by_hooks(module: nn.Module) -> bool:
    """Return True if the script has hooks that an extra backward would call."""
    return any(m._backward_hooks or m._backward_pre_hooks for m in module.modules()) or any(
        p._backward_hooks for p in module.parameters()
    )


def input_sizes(inputs: Any, count: int) -> list[float] | None:
    """Return the root mean square of each sample's real inputs; None if it has none.

    ``inputs`` is a tree of tensors.
    """
    rows = [
        t.detach().reshape(count, -1).double()
        for _, t in find(inputs, torch.Tensor)
        if t.is_floating_point() and has_rows(t, count)
    ]
    if not rows:
        return None
    sizes: list[float] = torch.cat(rows, 1).square().mean(1).sqrt().tolist()
    return sizes


def tokens_each(call: RecordedCall, count: int) -> int | None:
    """Return the number of tokens of each sample; None if the inputs are no token indices."""
    for _, tensor in find((call.args, call.kwargs), torch.Tensor):
        indices = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if indices and tensor.dim() == 2 and tensor.shape[0] == count:
            return int(tensor.shape[1])
    return None


def _layers(found: SampleGradients, sample: int) -> tuple[str, ...]:
    squares = found.squares[sample]
    total = float(squares.sum())
    if not total > 0:
        return ()
    order = squares.argsort(descending=True)[:_LAYERS].tolist()
    return tuple(found.names[n] for n in order if float(squares[n]) >= _PART * total)


#: In which a NaN or Inf is seen, the earliest first.
_PLACES = ("input", "output", "gradient", None)


def worst_first(samples: Sequence[SpikeSample]) -> tuple[SpikeSample, ...]:
    """Sort samples: those with NaN or Inf, then by their share, or by their loss without one."""
    return tuple(
        sorted(samples, key=lambda s: (_PLACES.index(s.nonfinite), -_badness(s), s.call, s.index))
    )


def _badness(sample: SpikeSample) -> float:
    for value in (sample.share, sample.loss):
        if value is not None and math.isfinite(value):
            return value
    return 0.0
