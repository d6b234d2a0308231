"""What an axis came to, with the call and the line of a leak."""

from __future__ import annotations

import math

import torch

from gradscope.leaks.changes import Change
from gradscope.leaks.first_call import Crossing, first_call
from gradscope.leaks.subject import Subject
from gradscope.leaks.trials import Trial
from gradscope.records.leaks import AxisResult, SourceLine

#: A gradient below this share of the largest is rounding of the backward pass.
ROUNDING = 1e-5


def not_judged(axis: str, why: str, advice: str | None = None) -> AxisResult:
    """An axis that cannot be judged, and why."""
    return AxisResult(axis, "not-judged", why, advice=advice)


def clean(axis: str, message: str, gradient: bool | None = None) -> AxisResult:
    """An axis along which nothing is seen that must not be."""
    return AxisResult(axis, "clean", message, finite=False, gradient=gradient)


def doubtful(axis: str, change: Change) -> AxisResult:
    """A change that may be none."""
    return AxisResult(
        axis, "not-judged", change.doubt or "", effect=_finite(change.effect), finite=True
    )


def leak(
    subject: Subject,
    axis: str,
    words: str,
    change: Change,
    trial: Trial | None,
    *,
    reach: str | None = None,
    gradient: bool | None = None,
    advice: str | None = None,
) -> AxisResult:
    """A leak, with the first call that lets it through.

    ``words`` end a sentence that begins with the operation.
    """
    crossing = None if trial is None else first_call(subject.forwards, trial)
    message, source = told(crossing, words), None
    if crossing is not None and crossing.file is not None and crossing.line is not None:
        source = SourceLine(crossing.file, crossing.line, crossing.text)
    if reach:
        message += f"; reaches {reach}"
    if gradient is False:
        message += "; forward passes see it and the gradient does not (argmax, rounding, detach)"
    return AxisResult(
        axis,
        "leaks",
        message,
        effect=_finite(change.effect),
        reach=reach,
        layer=None if crossing is None else crossing.layer,
        call=None if crossing is None else crossing.call,
        operation=None if crossing is None else crossing.operation,
        source=source,
        advice=advice,
        finite=True,
        gradient=gradient,
        severity="error",
    )


def _finite(effect: float) -> float | None:
    """Formats have no infinity: a change from or to one has no size."""
    return effect if math.isfinite(effect) else None


def told(crossing: Crossing | None, words: str) -> str:
    """The operation, where it is, and what it does."""
    if crossing is None:
        return f"{words} (no single operation lets it through)"
    at = f" at {crossing.file}:{crossing.line}" if crossing.file else ""
    return f"`{crossing.operation}`{at} {words}"


def nonzero(values: torch.Tensor) -> torch.Tensor:
    """Where the gradients in a row are more than rounding."""
    largest = values.amax(dim=-1, keepdim=True)
    return (values > ROUNDING * largest) & (values > 0)
