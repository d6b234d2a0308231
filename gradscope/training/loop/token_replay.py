"""Tests whether a call's outputs depend on earlier and on later tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gradscope.capture.optimizer_steps import wide
from gradscope.nesting import find
from gradscope.training.loop.script_lines import script_place
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

    ``past`` is None if it was not tested.
    """

    future: bool
    past: bool | None
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
    return None if call.drew else Seen(future > noise, past, first.location)


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
