"""Comparison of a report with expected facts: each fact named, numbers within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: What two computations of the same step in one process may differ by, relative.
TOLERANCE = 1e-5
#: What is left of a gradient that is zero but for rounding, such as that of a bias before a norm.
RESIDUE = 1e-7


@dataclass(frozen=True, slots=True)
class Deviation:
    """A number and what was expected, and how far they are apart in units of ``scale``."""

    place: str
    found: float
    expected: float
    scale: float  # the size that its error is measured by; 0: an absolute error

    @property
    def share(self) -> float:
        """The error, relative where there is a scale."""
        error = abs(self.found - self.expected)
        return error / self.scale if self.scale else error


def differences(report: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the differences between the expected facts and the report, each with its place.

    Args:
        report: as ``gradscope inspect -f json`` writes it.
        expected: the facts; their ``tolerance`` and ``residue``, where given, go before the
            module's own, and ``computed`` is words for people.
    """
    return facts_differ(_keyed(report), expected)


def facts_differ(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The same for facts whose calls and parameters are mappings by name already."""
    facts = {key: value for key, value in expected.items() if key != "computed"}
    tolerance, residue = facts.pop("tolerance", TOLERANCE), facts.pop("residue", RESIDUE)
    wrong = []
    for difference in compared(found, facts):
        if isinstance(difference, str):
            wrong.append(difference)
        elif not difference.share <= (tolerance if difference.scale else residue):
            wrong.append(
                f"{difference.place} is {difference.found}, expected {difference.expected}"
            )
    return wrong


def _keyed(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with its lists of named things as mappings by name and by path."""
    calls: dict[str, list[Any]] = {}
    for call in report["calls"]:
        calls.setdefault(call["name"], []).append(_by_path(call))
    parameters = {parameter["name"]: parameter for parameter in report["parameters"]}
    history = [_by_path(step) for step in report["history"]]
    return {**report, "calls": calls, "parameters": parameters, "history": history}


def _by_path(record: Mapping[str, Any]) -> dict[str, Any]:
    sides = {
        side: {tensor["path"]: tensor for tensor in record[side]}
        for side in ("inputs", "outputs")
        if side in record
    }
    return {**record, **sides}


def compared(found: Any, expected: Any, where: str = "") -> Iterator[str | Deviation]:
    """Yield a sentence for a missing or other fact, and the deviation of each number."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        rms = _rms(expected)
        for key, value in expected.items():
            place = f"{where} › {key or '(bare)'}".removeprefix(" › ")
            if key not in found:
                yield f"{place} is missing"
            elif key == "mean" and rms is not None:
                # A mean is a sum of cancelling parts: its error is measured by their size.
                yield Deviation(place, found[key], value, rms)
            else:
                yield from compared(found[key], value, place)
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            yield f"{where} has {len(found)} entries, expected {len(expected)}"
        for index, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from compared(one, other, f"{where}[{index}]")
    elif isinstance(expected, float) and isinstance(found, int | float):
        yield Deviation(where, found, expected, 0.0 if abs(expected) < RESIDUE else abs(expected))
    elif found != expected or isinstance(found, bool) is not isinstance(expected, bool):
        yield f"{where} is {found!r:.80}, expected {expected!r:.80}"


def _rms(facts: Mapping[str, Any]) -> float | None:
    if "norm" not in facts or "shape" not in facts:
        return None
    return float(facts["norm"]) / math.sqrt(max(1, math.prod(facts["shape"])))
