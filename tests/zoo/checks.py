"""Checks of a model: it runs, its numbers are true, its gradients and itself unchanged."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from truth.steps import identical

from zoo.entries import Entry
from zoo.observing import Observed, plain_step
from zoo.twins import against_twin, gradient_rows


@dataclass
class Result:
    """Results of one model. ``reasons`` is empty if every check passed."""

    label: str
    group: str
    kind: str
    family: str
    outcome: str = "ok"  # ok | failed | raised | timeout | died
    reasons: list[str] = field(default_factory=list)
    repeats: bool | None = None  # the plain step, bit for bit
    identical: bool | None = None  # gradients under observation; None where they do not repeat
    precision: str = ""  # the dtype in which the numbers agree
    compared: int = 0  # tensors compared with the reference
    hidden: int = 0  # gradients that are null, with the note that says so
    calls: int = 0
    parameters: int = 0
    seconds: float = 0.0

    def data(self) -> dict[str, Any]:
        """As a line of the results."""
        return asdict(self)


def check(entry: Entry) -> Result:
    """Everything that is asked of one model."""
    result = Result(entry.label, entry.group, entry.kind, entry.family)
    began = time.perf_counter()
    model, inputs = entry.build()
    first, second = plain_step(model, inputs), plain_step(model, inputs)
    result.repeats = all(identical(first[name], second[name]) for name in first)
    del second
    observed = Observed(first)
    report = observed.inspect(model, inputs)
    result.reasons += observed.left
    result.calls = len(report["calls"])
    result.parameters = report["totals"]["parameters"]
    if result.repeats:
        result.identical = not observed.different
        result.reasons += [f"{name}: another gradient" for name in observed.different[:5]]
        result.reasons += list(gradient_rows(report, first))[:5]
    del first, observed
    found = against_twin(model, inputs, report)
    result.precision, result.compared = found.precision, found.compared
    result.hidden = found.hidden
    result.reasons += found.differences
    result.outcome = "failed" if result.reasons else "ok"
    result.seconds = round(time.perf_counter() - began, 2)
    return result
