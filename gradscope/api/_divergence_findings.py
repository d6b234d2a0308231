"""Where two runs part → findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.capture.differences import Difference
from gradscope.comparison.findings import LOOK, only_in_one, other_weight
from gradscope.records.diff import DiffReport, ParameterDiff
from gradscope.records.report import Finding
from gradscope.running.divergent_calls import DivergentCall, Noise

#: A parameter's gradient that is farther off than this is another gradient; msprobe's bound for an
#: error that comes of exact inputs.
_LOST = 0.1
#: A's own gradient counts as sure where the last bits of all numbers move it by less than this.
_SURE = 1e-2


def findings(
    report: DiffReport, forward: Sequence[DivergentCall], backward: Sequence[DivergentCall]
) -> Iterator[Finding]:
    """Forward, backward, then what no single place explains."""
    if forward:
        yield _departs(report, "GD101", "forward-departs", forward)
    if backward:
        yield _departs(report, "GD102", "backward-departs", backward)
    yield from only_in_one(report)
    if not forward and not backward:
        yield from _lost(report)


def _departs(report: DiffReport, code: str, rule: str, places: Sequence[DivergentCall]) -> Finding:
    first = places[0]
    name, call = first.call or ("", 0)
    others = list(dict.fromkeys(_words(p) for p in places[1:] if p.call != first.call))
    more = f"; so do, by themselves, {_some(others)}" if others else ""
    known = figures(first.own, first.noise)
    value, threshold, source = known or (None, None, None)
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=call,
        message=_message(first, rule == "forward-departs") + other_weight(report, name) + more,
        advice=LOOK if first.call else "compare the losses of A and B",
        value=value,
        threshold=threshold,
        source=source,
        cause="loss" if first.call is None else "batch" if first.batch else "layer",
    )


def _message(place: DivergentCall, forward: bool) -> str:
    gap = off(place.own, place.noise)
    if place.batch:
        return f"the model is called with another batch: {gap}"
    if place.call is None:
        what = "the loss itself" if forward else "the gradient that the loss sends to the output"
        return f"given A's output, {what} is {gap}"
    given = "given A's inputs" if forward else "given A's inputs and A's gradient"
    if place.parameter is not None:
        what = f"the gradient of `{place.parameter}`"
    elif place.beside is not None:
        side = "before" if place.before else "after"
        beside = place.beside[0] + (f" #{place.beside[1]}" if place.beside[1] else "")
        what = f"what its own code makes right {side} `{beside}`"
        what += "" if forward else " on the way back"
    else:
        what = "its output" if forward else "the gradient that it sends back"
    return f"{given}, {what} is {gap}"


def off(own: Difference, noise: Noise) -> str:
    """By how much a tensor is off, in the measure that is farthest above the noise."""
    if not math.isfinite(own.error):
        return "not comparable: only one of the two has such numbers here"
    value, _ = noise.limit(own)
    words = f"off by {own.error:.1e} of itself"
    if value == own.error:
        return words
    larger = "larger" if own.scale > 0 else "smaller"
    return f"{larger} throughout, by {value:.1e} of itself"


def figures(own: Difference, noise: Noise) -> tuple[float, float, str] | None:
    """The value, the threshold, to a digit, and its source; None where there is no number.

    Noise is known to a digit: another processor draws another.
    """
    value, limit = noise.limit(own)
    if not math.isfinite(value):
        return None
    rounded = float(f"{limit:.1g}")
    times = limit / (noise.error if value == own.error else noise.scale)
    return value, rounded if rounded < value else limit, f"{times:g} times the noise of A"


def _lost(report: DiffReport) -> Iterator[Finding]:
    """Gradients that B's rounding loses though no place does anything wrong."""
    lost = [p for p in report.parameters if _error(p) > _LOST and _noise(p) < _SURE]
    if not lost:
        return
    worst = max(lost, key=_error)
    yield Finding(
        code="GD105",
        rule="gradient-lost",
        severity="warning",
        name=worst.name,
        message=f"its gradient is off by {100 * _error(worst):.0f} % though no place departs: "
        f"rounding, added up, does so to {len(lost)} of {len(report.parameters)} parameters",
        advice="keep the layers where errors grow in a wider dtype, or accept it knowingly",
        value=_error(worst),
        threshold=_LOST,
        source="msprobe: an error of 0.1",
    )


def _error(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.error) or 0.0


def _noise(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.noise) or 0.0


def _words(place: DivergentCall) -> str:
    return "the loss" if place.call is None else f"`{place.call[0] or 'the model itself'}`"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more places"
