"""One scale of severity: findings have it from their rule, answers from here."""

from __future__ import annotations

from collections.abc import Iterable

from gradscope.records.answers import Answer
from gradscope.records.coord_check import LayerScaling
from gradscope.records.leaks import AxisResult
from gradscope.records.report import Finding

#: The worst first.
SEVERITIES = ("error", "warning", "info")


def severity(answer: Answer) -> str | None:
    """Return ``error``, ``warning``, ``info``, or None if nothing is wrong.

    The severity of a run's rule takes precedence. A zero gradient is an info if a gradient arrives
    after an optimizer step, as upstream of a factor that was initialised with zeros. It is a
    warning if this is unknown, if this batch alone may have masked it, or if none of the usual
    causes explains it: then gradients cancel, and the loss does not depend on the parameter. A
    requested freeze is no problem. A parameter that the config freezes but that trains is a
    warning; if a misspelt flag asks for the freeze, it is an error.
    """
    if answer.severity is not None:
        return answer.severity
    if answer.cause == "misspelt":
        return "error"
    if answer.cause == "frozen":
        return "warning" if answer.state == "healthy" else None
    if answer.state in ("healthy", "not-judged"):
        return None
    if answer.state == "zero" and answer.recovers:
        return "info"
    if answer.state == "zero":
        passing = answer.cause == "zero-weight" and answer.recovers is None
        return "warning" if passing or answer.cause in ("masked", None) else "error"
    return "error"


def reaches(found: Iterable[Finding | Answer | AxisResult | LayerScaling], threshold: str) -> bool:
    """Return True if one is as severe as ``threshold`` or more; ``never`` is never reached."""
    if threshold not in SEVERITIES:
        return False
    counting = SEVERITIES[: SEVERITIES.index(threshold) + 1]
    levels = (severity(one) if isinstance(one, Answer) else one.severity for one in found)
    return any(level in counting for level in levels)
