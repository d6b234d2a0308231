"""Compares a loss's targets with its model's tokens.

Targets may copy the tokens, shift them by one position, or include padding. Whether a call's
outputs depend on earlier and on later tokens is tested by running the call again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gradscope.capture.hooks import raised_by_a_handler
from gradscope.capture.optimizer_steps import wide
from gradscope.capture.shards import is_spread
from gradscope.nesting import find
from gradscope.records.loop_figures import LoopTokens
from gradscope.training.loop.loss_lines import ignored_at
from gradscope.training.loop.loss_walk import saved, shape_of, signed
from gradscope.training.loop.script_lines import script_place
from gradscope.training.models import Model
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.nan_detector.replayed_calls import as_it_began

#: A smaller change, beside the root mean square of all outputs, may be rounding.
_ROUNDING = 1e-4
_ATTENTION = frozenset(
    {
        functional.scaled_dot_product_attention,
        functional.multi_head_attention_forward,
        functional.softmax,
        torch.softmax,
        torch.Tensor.softmax,
    }
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The dependence of outputs on later and on earlier tokens, with the line of the first
    attention operation.

    Attributes:
        past: None if it was not tested.
        own: True if an output depends on the token at its own position, or on later ones.
    """

    future: bool
    past: bool | None
    own: bool
    location: str | None


def replayed(
    call: RecordedCall, place: int, axis: int, classes: int, *, memory: bool
) -> Seen | None:
    """Run a call again, in eval mode; None without a result.

    If the model is causal, other tokens in the second half of each sequence do not change the
    outputs of the first half. If it has a memory, outputs of the second half depend on the first
    half.

    Args:
        call: the call of a model with tokens.
        place: the index of the tokens among the tensors of its arguments.
        axis: the time axis.
        classes: the number of scores for each token.
        memory: also test whether outputs depend on earlier tokens.
    """
    base = _scores(call, place, axis, classes, None)
    if base is None:
        return None
    half = base.shape[1] // 2
    later = _scores(call, place, axis, classes, slice(half, None))
    if later is None:
        return None
    noise = _ROUNDING * float(base.square().mean().sqrt())
    future, past, first = _change(base[:, :half], later[:, :half]), None, _FirstAttention()
    own = _change(base[:, half], later[:, half])  # the first token that was changed
    if memory or future > noise:
        with first:
            again = _scores(call, place, axis, classes, None)
        if again is None:
            return None
        noise += 4 * _change(base, again)
    if memory:
        earlier = _scores(call, place, axis, classes, slice(None, half))
        if earlier is None:
            return None
        past = _change(base[:, half:], earlier[:, half:]) > noise
    return None if call.drew else Seen(future > noise, past, own > noise, first.location)


def _change(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _scores(
    call: RecordedCall, place: int, axis: int, classes: int, changed: slice | None
) -> torch.Tensor | None:
    """Return the scores by sequence, position and class, with other tokens at some positions."""
    with as_it_began(call) as (module, args, kwargs), torch.no_grad():
        module.eval()
        tensors = [one for _, one in find((args, kwargs), torch.Tensor)]
        tokens = tensors[place] if axis == 1 else tensors[place].t()
        if changed is not None:
            low, high = int(tokens.min()), int(tokens.max())
            some = tokens[:, changed]
            some.copy_((some - low + 1) % max(high - low + 1, 1) + low)
        output = module(*args, **kwargs)
        rows, steps = tokens.shape
        for _, one in find(output, torch.Tensor):
            if one.is_floating_point() and one.numel() == rows * steps * classes:
                return _by_position(wide(one.detach()), rows, steps, axis)
    return None


def _by_position(scores: torch.Tensor, rows: int, steps: int, axis: int) -> torch.Tensor | None:
    if scores.dim() == 2:
        shape = (rows, steps, -1) if axis == 1 else (steps, rows, -1)
        scores = scores.reshape(shape)
    elif scores.dim() != 3:
        return None
    if axis == 0:
        scores = scores.transpose(0, 1)
    if tuple(scores.shape[:2]) == (rows, steps):
        return scores
    return scores.transpose(1, 2) if scores.shape[2] == steps else None


class _FirstAttention(TorchFunctionMode):
    """Notes the script's line of the first operation that mixes positions by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.location: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.location is None and func in _ATTENTION:
            self.location = script_place()
        return func(*args, **(kwargs or {}))


#: Shorter sequences, and batches of fewer targets that count, say little.
_SHORTEST, _FEWEST = 4, 16
#: The most calls kept of one step, and the most replays tried.
_CALLS, _TRIES = 8, 2
#: If sequences hardly vary, it is unknown which token a target is.
_VARIES = 0.25
_TOKENS = frozenset({torch.int64, torch.int32})
#: An answer has so many tokens, all different ones counted; padding is one token.
_ANSWER = 2
#: Marks of the end and padding are so many different tokens at most, in all sequences together.
_MARKS = 3


class _Call:
    """The tokens and masks of one call, each with its place among the tensors of the arguments."""

    def __init__(self, model: int, tensors: Sequence[torch.Tensor]) -> None:
        self.model = model
        self.location = script_place()
        self.shapes: list[tuple[int, ...]] = []  # of what it returned
        self.tokens = [
            (place, one)
            for place, one in enumerate(tensors)
            if one.dtype in _TOKENS and one.dim() == 2 and min(one.shape) > 0 and _plain(one)
        ]
        self.masks = [one for one in tensors if one.dim() == 2 and _is_mask(one)]


#: A call, the place of the tokens, the axis of time, and tokens and targets by position.
_Candidate = tuple[_Call, int, int, tuple[torch.Tensor, torch.Tensor]]


class _Targets:
    """Facts on one model."""

    def __init__(self) -> None:
        self.batches = self.copied = self.following = self.skipping = self.unended = 0
        self.unanswered = self.ignored = 0
        self.targets = self.padding = self.pad = self.pad_class = self.lengths = self.end = 0
        self.padded = True  # in each batch so far
        self.location: str | None = None
        self.inside = False
        self.called_at: str | None = None
        self.made_at: str | None = None
        self.tries = 0
        self.seen: Seen | None = None
        self.wanted: list[tuple[int, int, int]] = []  # place of the tokens, time axis, classes


class TokenTargets:
    """Compares the targets of classification losses with the tokens of the models' calls."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._of: dict[int, _Targets] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a model's call with gradients, in a sampled step."""
        call = _Call(model, [one for _, one in find((args, kwargs), torch.Tensor)])
        if call.tokens and len(self._calls) < _CALLS:
            self._calls.append(call)

    def returned(self, model: int, output: object) -> None:
        """Note a call's output."""
        if self._calls and self._calls[-1].model == model and not self._calls[-1].shapes:
            tensors = find(output, torch.Tensor)
            self._calls[-1].shapes = [
                tuple(one.shape) for _, one in tensors if one.is_floating_point() and one.dim() > 1
            ]

    def read(self, loss: Node) -> _Targets | None:
        """Read the targets of a classification, if they belong to a known call."""
        target = saved(loss).get("target") if self._calls else None
        scores = loss.next_functions[0][0]
        shape = None if scores is None else shape_of(scores)
        if target is None or not shape or len(shape) < 2:
            return None
        index = getattr(loss, "_saved_ignore_index", None)
        ignored = -100 if index is None else signed(index)
        if target.dim() == 3 and target.shape[1] == 1:  # PyTorch makes [N, 1, T] of [N, T]
            target = target.squeeze(1)
        found = list(self._laid_out(target.detach(), shape[1]))
        if not found:
            return None
        # With an encoder and a decoder, the input that agrees best with the targets counts.
        agreements = [_agreement(one[3], ignored) for one in found]
        best = [one for one, part in zip(found, agreements, strict=True) if part == max(agreements)]
        call, _, _, laid = best[0]
        known = self._of.setdefault(call.model, _Targets())
        self._add(known, call, laid, ignored)
        # Labels beside the tokens may be one position ahead of them already.
        mine = [laid for one, _, _, laid in found if one is call and _varies(laid[0])]
        known.skipping += any(_are_ahead(*laid, ignored, by=2) for laid in mine)
        # Targets that are the tokens are so along either axis.
        known.wanted = [(place, axis, shape[1]) for one, place, axis, _ in best if one is call]
        known.called_at = known.called_at or call.location
        return known

    def _laid_out(self, target: torch.Tensor, classes: int) -> Iterator[_Candidate]:
        """Yield the tokens of known calls that may belong to these targets, with their place."""
        for call in reversed(self._calls):
            for place, tokens in call.tokens:
                for axis in (1, 0):
                    laid = _laid_out(tokens, target, axis)
                    if laid is None or not _gives(call, tokens.numel() * classes):
                        continue
                    if not _is_target(tokens, target, call):
                        yield call, place, axis, laid

    def step_ended(self) -> None:
        """Note the end of a step: the calls so far belong to no later loss."""
        if self._calls:
            self._calls = []

    # ---------------------------------------------------------------- replays

    @property
    def wants_replay(self) -> bool:
        """True if a replay of this step's calls would show which tokens their outputs depend on."""
        return bool(self._calls) and any(map(_is_open, self._of.values()))

    def replay(
        self, calls: Sequence[RecordedCall], models: Sequence[Model], refused: Callable[..., str]
    ) -> None:
        """Run the calls of this step again with other tokens, and restore the state.

        Args:
            calls: the calls of this step.
            models: the trained models.
            refused: returns the reason why a model cannot run again, else "".
        """
        for model in models:
            known = self._of.get(model.id)
            if known is None or not _is_open(known) or not known.wanted:
                continue
            known.tries += 1
            mine = [one for one in calls if one.module is model.module_ref()]
            if not mine or refused(model) or not mine[-1].repeatable or mine[-1].overwritten:
                continue
            try:
                # A memory tells a decoder's tokens from others, and a copy that must not be one.
                memory = known.copied > 0 or len(known.wanted) > 1
                for place, axis, classes in known.wanted:
                    seen = replayed(mine[-1], place, axis, classes, memory=memory)
                    known.seen = seen or known.seen
                    if known.seen is not None and known.seen.past:
                        break
            except Exception as error:  # of the model: with these tokens it is not known
                if raised_by_a_handler(error):
                    raise
                known.tries = _TRIES

    def records(self) -> Iterator[LoopTokens]:
        """Yield the record of each model that takes tokens."""
        for model, one in self._of.items():
            seen = one.seen
            yield LoopTokens(
                model=model, batches=one.batches, copied=one.copied, following=one.following,
                skipping=one.skipping, unended=one.unended,
                future=None if seen is None else seen.future,
                past=None if seen is None else seen.past,
                own=None if seen is None else seen.own, targets=one.targets,
                padding=one.padding if one.padded else 0, pad=one.pad, pad_class=one.pad_class,
                unanswered=one.unanswered,
                ignored_at=ignored_at(one.ignored) if one.unanswered else None,
                lengths=one.lengths, end=one.end, location=one.location, inside=one.inside,
                called_at=one.called_at,
                made_at=one.made_at,
                mixed_at=None if seen is None else seen.location,
            )  # fmt: skip

    # ---------------------------------------------------------------- one batch

    def _add(
        self,
        known: _Targets,
        call: _Call,
        laid: tuple[torch.Tensor, torch.Tensor],
        ignored: int,
    ) -> None:
        tokens, target = laid
        known.batches += 1
        counts = target != ignored
        if int(counts.sum()) < _FEWEST:
            return
        steps = target.shape[1]
        masks = [one for one in call.masks if one.shape == tokens.shape]
        if _varies(tokens):
            known.copied += _are_ahead(tokens, target, ignored, by=0)
            following = _are_ahead(tokens, target, ignored, by=1)
            known.following += following
            if following and _unanswered(tokens, counts, masks):
                known.unanswered += 1
                known.ignored = ignored
        self._add_padding(known, tokens[:, :steps], target, counts)
        for mask in masks[:1]:
            end = _unended(tokens, target, counts, mask.bool())
            known.unended += end is not None
            known.end = known.end if end is None else end

    def _add_padding(
        self, known: _Targets, tokens: torch.Tensor, target: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Count the targets at the padding: a token that is only at the ends of sequences."""
        known.targets += target.numel()
        found = _padding(tokens, target) if bool(counts.all()) else None
        if found is None:
            known.padded = False
            return
        pad, value, count, lengths = found
        if known.padding and (pad, value) != (known.pad, known.pad_class):
            known.padded = False
        known.pad, known.pad_class = pad, value
        known.padding += count
        known.lengths = max(known.lengths, lengths)


def _varies(tokens: torch.Tensor) -> bool:
    """Return True if many tokens differ from the one before."""
    return float((tokens[:, 1:] != tokens[:, :-1]).double().mean()) >= _VARIES


def _are_ahead(tokens: torch.Tensor, target: torch.Tensor, ignored: int, by: int) -> bool:
    """Return True if each counted target is the token that is ``by`` positions later, as far as
    there is one."""
    later = tokens[:, by : target.shape[1] + by]
    near = target[:, : later.shape[1]]
    counts = near != ignored
    return int(counts.sum()) >= _FEWEST and bool(((near == later) | ~counts).all())


def _agreement(laid: tuple[torch.Tensor, torch.Tensor], ignored: int) -> float:
    """Return the share of targets that equal the token at their position, or the next token."""
    tokens, target = laid
    counts, steps = target != ignored, target.shape[1]
    ahead = tokens[:, 1 : steps + 1]
    same = ((target == tokens[:, :steps]) & counts).sum()
    following = ((target[:, : ahead.shape[1]] == ahead) & counts[:, : ahead.shape[1]]).sum()
    return float(torch.maximum(same, following)) / max(target.numel(), 1)


def _is_open(known: _Targets) -> bool:
    """Return True if a replay must show the purpose of the targets."""
    asks = known.batches > 0 and known.batches in (known.copied, known.following)
    return asks and known.seen is None and known.tries < _TRIES


def _laid_out(
    tokens: torch.Tensor, target: torch.Tensor, axis: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return tokens and targets by sequence and position; the last position may have no target."""
    laid = tokens if axis == 1 else tokens.t()
    rows, steps = laid.shape
    if steps < _SHORTEST:
        return None
    for count in (steps, steps - 1):
        if target.numel() == rows * count and target.dim() <= 2:
            if target.dim() == 2 and target.shape not in ((rows, count), (count, rows)):
                continue
            own = target.reshape(rows, count) if axis == 1 else target.reshape(count, rows).t()
            return laid, own
    return None


def _gives(call: _Call, count: int) -> bool:
    """Return True if a call returned the scores of all its tokens, or the loss alone."""
    return not call.shapes or any(torch.Size(shape).numel() == count for shape in call.shapes)


def _is_target(tokens: torch.Tensor, target: torch.Tensor, call: _Call) -> bool:
    """Return True if an argument of the call holds these targets, beside its input."""
    if len(call.tokens) < 2:
        return False
    same = [one for _, one in call.tokens if one.data_ptr() == tokens.data_ptr()]
    return (bool((tokens < 0).any()) or _shared(tokens, target)) and len(same) < 2


def _shared(tokens: torch.Tensor, target: torch.Tensor) -> bool:
    return tokens.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()


def _padding(tokens: torch.Tensor, target: torch.Tensor) -> tuple[int, int, int, int] | None:
    """Return the padding token, the class of its targets, their number, and the number of different
    lengths of sequences; None without padding.

    The token occurs nowhere else. The class occurs elsewhere only right before the padding.
    """
    pad = int(tokens[:, -1].mode().values)
    at_end = (tokens == pad).flip(1).long().cumprod(1).flip(1).bool()
    lengths = int(torch.unique((~at_end).sum(1)).numel())
    if lengths < 2 or bool(((tokens == pad) & ~at_end).any()):
        return None
    values = target[at_end]
    value = int(values[0])
    before = torch.nn.functional.pad(at_end[:, 1:], (0, 1)) & ~at_end  # predicts the first of it
    if bool((values != value).any()) or bool(((target == value) & ~at_end & ~before).any()):
        return None
    return pad, value, int(at_end.sum()), lengths


def _unended(
    tokens: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, mask: torch.Tensor
) -> int | None:
    """Return the token that ends all padded sequences and is also their padding, if it is never a
    target, although the tokens before it are; else None."""
    lengths = mask.sum(1)
    at_end = mask.long().cumprod(1).sum(1) == lengths  # nothing is masked before
    rows = (lengths < tokens.shape[1]) & (lengths > 2) & at_end
    if int(rows.sum()) < 2 or not bool(at_end.all()):
        return None
    last = lengths[rows] - 1
    some = torch.arange(len(last), device=tokens.device)
    ends, pads = tokens[rows][some, last], tokens[rows][some, last + 1]
    end = int(ends[0])
    if bool((ends != end).any()) or bool((pads != end).any()):
        return None
    # The output at one position is to be the token at the next.
    if bool(counts[rows][some, last - 1].any()) or bool((target[counts] == end).any()):
        return None
    return end if bool(counts[rows][some, last - 2].all()) else None


def _unanswered(tokens: torch.Tensor, counts: torch.Tensor, masks: Sequence[torch.Tensor]) -> bool:
    """Return True if the targets of each sequence count up to a position, and those after it, of
    real tokens, do not: a prompt is trained, and its answer is not."""
    begin = counts.long().cumprod(1).sum(1)
    lengths = counts.shape[1] - begin
    if bool((begin != counts.sum(1)).any()) or int(lengths.min()) < _ANSWER or not int(begin.min()):
        return False
    at_end = torch.arange(tokens.shape[1], device=tokens.device) > begin[:, None]
    if any(bool((~mask.bool() & at_end).any()) for mask in masks):
        return False  # padding
    if len(torch.unique(tokens[at_end])) <= _MARKS:
        return False  # padding after a mark of the end
    return all(
        len(torch.unique(row[end])) >= _ANSWER for row, end in zip(tokens, at_end, strict=True)
    )


def _plain(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
    return strided and not is_spread(tensor) and not tensor.is_quantized


def _is_mask(tensor: torch.Tensor) -> bool:
    """Return True if the tensor has only zeros and ones, and some of both."""
    if not _plain(tensor) or not tensor.numel():
        return False
    ones = tensor == 1
    return bool(ones.any()) and bool((ones | (tensor == 0)).all()) and not bool(ones.all())
