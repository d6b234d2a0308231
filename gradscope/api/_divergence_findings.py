"""Makes findings of the layers where two runs diverge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gradscope.capture.differences import Difference
from gradscope.comparison.reports import LOOK, only_in_one, other_weight
from gradscope.records.diff import DiffReport, ParameterDiff
from gradscope.records.report import Finding
from gradscope.running.divergent_calls import DivergentCall, Noise

#: A parameter's gradient that is farther off than this is another gradient; msprobe's bound for an
#: error that comes of exact inputs.
_LOST = 0.1
# : A's own gradient counts as reliable if changed last bits of all numbers move it by less than
# this.
_SURE = 1e-2


def findings(
    report: DiffReport, forward: Sequence[DivergentCall], backward: Sequence[DivergentCall]
) -> Iterator[Finding]:
    """Yield findings forward, backward, then those that no single layer explains."""
    if forward:
        yield _diverges(report, "GD101", "forward-diverges", forward)
    if backward:
        yield _diverges(report, "GD102", "backward-diverges", backward)
    yield from only_in_one(report)
    if not forward and not backward:
        yield from _lost(report)


def _diverges(report: DiffReport, code: str, rule: str, places: Sequence[DivergentCall]) -> Finding:
    first = places[0]
    name, call = first.call or ("", 0)
    others = list(dict.fromkeys(_words(p) for p in places[1:] if p.call != first.call))
    more = f"; {_some(others)} diverge too" if others else ""
    known = figures(first.own, first.noise)
    value, threshold, source = known or (None, None, None)
    return Finding(
        code=code,
        rule=rule,
        severity="error",
        name=name,
        call=call,
        message=_message(first, rule == "forward-diverges") + other_weight(report, name) + more,
        advice=LOOK if first.call else "compare the losses of A and B",
        value=value,
        threshold=threshold,
        source=source,
        cause="loss" if first.call is None else "batch" if first.batch else "layer",
    )


def _message(place: DivergentCall, forward: bool) -> str:
    diff = off(place.own, place.noise)
    if place.batch:
        return f"B's model gets another batch: {diff}"
    if place.call is None:
        what = "the loss" if forward else "the gradient that the loss sends to the output"
        return f"with A's output as its input, {what} is {diff}"
    given = "with A's inputs" if forward else "with A's inputs and A's output gradient"
    if place.parameter is not None:
        what = f"the gradient of `{place.parameter}`"
    elif place.beside is not None:
        side = "before" if place.before else "after"
        beside = place.beside[0] + (f" #{place.beside[1]}" if place.beside[1] else "")
        what = f"the result of its code right {side} `{beside}`"
        what += "" if forward else ", in backward,"
    else:
        what = "its output" if forward else "its input gradient"
    return f"{given}, {what} is {diff}"


def off(own: Difference, noise: Noise) -> str:
    """Describe the error of a tensor, by the measure that exceeds the noise most."""
    if not math.isfinite(own.error):
        return "NaN or Inf in one run only"
    value, _ = noise.limit(own)
    words = f"off by a relative error of {own.error:.1e}"
    if value == own.error:
        return words
    larger = "larger" if own.scale > 0 else "smaller"
    return f"{larger} in all elements, by {value:.1e}"


def figures(own: Difference, noise: Noise) -> tuple[float, float, str] | None:
    """Return the value, the threshold rounded to one digit, and its source; None without a number.

    Only one digit of the noise is reliable: another processor measures another noise.
    """
    value, limit = noise.limit(own)
    if not math.isfinite(value):
        return None
    rounded = float(f"{limit:.1g}")
    times = limit / (noise.error if value == own.error else noise.scale)
    return value, rounded if rounded < value else limit, f"{times:g} times the noise of A"


def _lost(report: DiffReport) -> Iterator[Finding]:
    """Yield gradients that B loses to rounding although no layer diverges."""
    lost = [p for p in report.parameters if _error(p) > _LOST and _noise(p) < _SURE]
    if not lost:
        return
    worst = max(lost, key=_error)
    yield Finding(
        code="GD105",
        rule="gradient-lost",
        severity="warning",
        name=worst.name,
        message=f"its gradient is off by {100 * _error(worst):.0f} %, but no layer diverges: "
        f"accumulated rounding does this to {len(lost)} of {len(report.parameters)} parameters",
        advice="keep the layers where errors grow in a wider dtype, or accept the error",
        value=_error(worst),
        threshold=_LOST,
        source="msprobe: an error of 0.1",
    )


def _error(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.error) or 0.0


def _noise(parameter: ParameterDiff) -> float:
    return (parameter.gradient and parameter.gradient.noise) or 0.0


def _words(place: DivergentCall) -> str:
    return "the loss" if place.call is None else f"`{place.call[0] or 'the model'}`"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
