"""Whether a report holds what is expected: every fact named, numbers within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TOLERANCE = 1e-4


def differences(report: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What the expected facts say otherwise than the report, each with its place."""
    facts = dict(expected)
    tolerance = facts.pop("tolerance", TOLERANCE)
    return list(_differences(_keyed(report), facts, "", tolerance))


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


def _differences(found: Any, expected: Any, where: str, tolerance: float) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        rms = _rms(expected)
        for key, value in expected.items():
            place = f"{where} › {key or '(bare)'}".removeprefix(" › ")
            if key not in found:
                yield f"{place} is missing"
            elif key == "mean" and rms is not None:
                # A mean is a sum of cancelling parts: its error is measured by their size.
                if not math.isclose(found[key], value, abs_tol=tolerance * rms):
                    yield f"{place} is {found[key]}, expected {value}"
            else:
                yield from _differences(found[key], value, place, tolerance)
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            yield f"{where} has {len(found)} entries, expected {len(expected)}"
        for index, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from _differences(one, other, f"{where}[{index}]", tolerance)
    elif isinstance(expected, float) and isinstance(found, int | float):
        if not math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * 1e-3):
            yield f"{where} is {found}, expected {expected}"
    elif found != expected or isinstance(found, bool) is not isinstance(expected, bool):
        yield f"{where} is {found!r:.80}, expected {expected!r:.80}"


def _rms(facts: Mapping[str, Any]) -> float | None:
    if "norm" not in facts or "shape" not in facts:
        return None
    return float(facts["norm"]) / math.sqrt(max(1, math.prod(facts["shape"])))
