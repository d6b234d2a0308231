"""Holds a report (its JSON data) against the truth and lists every difference.

The bounds are those that the report promises: norm, min and max within 1e-5 of the true value, mean
within 1e-5 of the rms, std within 1e-3 (or 1e-5 of the rms, where it is nothing beside the mean),
counts exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from truth.reductions import statistics
from truth.reference import Call, Slot, Truth


@dataclass
class Comparison:
    """Differences, number of tensors compared, and number of nulls with a note that allows it."""

    differences: list[str] = field(default_factory=list)
    compared: int = 0
    hidden: int = 0
    noise: float = 0.0  # below this a gradient is nothing but rounding


def compare(report: dict[str, Any], truth: Truth, *, noise: float = 0.0) -> Comparison:
    """Every call, tensor, gradient and parameter of ``report`` against the twin's.

    Gradients that differ by less than ``noise`` times the largest one's norm do not differ: where
    terms cancel (a bias before a normalisation) what is left is rounding, in both.
    """
    result = Comparison(noise=noise * _largest(truth) if noise else 0.0)
    said = result.differences
    if report["status"] not in ("ok", "findings"):
        said.append(f"status: {report['status']}, {report.get('error')}")
    loss = float(truth.loss)
    if math.isfinite(loss) and not _close(report["loss"], loss, 1e-5 * abs(loss)):
        said.append(f"loss: {report['loss']}, truly {loss}")
    have = [(call["name"], call["call"]) for call in report["calls"]]
    want = [(call.name, call.call) for call in truth.calls]
    said += [f"{name}#{n}: call missing" for name, n in want if (name, n) not in have]
    said += [f"{name}#{n}: no such call" for name, n in have if (name, n) not in want]
    if sorted(have) == sorted(want) and have != want:
        said.append("calls are not listed in the order of entry")
    rows = dict(zip(have, report["calls"], strict=True))
    for order, call in enumerate(truth.calls):
        if (call.name, call.call) in rows:
            _compare_call(rows[call.name, call.call], call, order, result)
    _compare_parameters(report["parameters"], truth, result)
    return result


def _compare_call(row: dict[str, Any], call: Call, order: int, result: Comparison) -> None:
    where = f"{call.name or '(root)'}#{call.call}"
    facts = {"type": call.type, "order": order, "training": call.training}
    for key, true in facts.items():
        if row.get(key, true) != true:
            result.differences.append(f"{where}: {key} {row[key]}, truly {true}")
    if sorted(row["aliases"]) != sorted(call.aliases):
        result.differences.append(f"{where}: aliases {row['aliases']}, truly {call.aliases}")
    for note, holds in (("pass-through", call.passed_through), ("shared-input", call.shared)):
        true = any(holds(slot) and slot.total is not None for slot in call.inputs)
        free = any(holds(slot) for slot in call.inputs)
        noted = _noted(row, note)
        if (true and not noted) or (noted and not free):
            result.differences.append(f"{where}: note {note} {'missing' if true else 'is wrong'}")
    for kind, slots in (("inputs", call.inputs), ("outputs", call.outputs)):
        paths = [slot.path for slot in slots]
        if [tensor["path"] for tensor in row[kind]] != paths:
            found = [tensor["path"] for tensor in row[kind]]
            result.differences.append(f"{where}: {kind} {found}, truly {paths}")
            continue
        for tensor, slot in zip(row[kind], slots, strict=True):
            at = f"{where}.{kind}[{slot.path}]"
            result.differences += stats_differences(
                tensor["activation"], slot.record, f"{at}.value"
            )
            _compare_gradient(tensor["gradient"], call, slot, row, at, result)
            result.compared += 1
            if kind == "outputs" and tensor["grad_fn"] != slot.token.grad_fn:
                fn = f"{tensor['grad_fn']}, truly {slot.token.grad_fn}"
                result.differences.append(f"{at}: grad_fn {fn}")


def _compare_gradient(
    stats: dict[str, Any] | None,
    call: Call,
    slot: Slot,
    row: dict[str, Any],
    at: str,
    result: Comparison,
) -> None:
    is_input = any(slot is other for other in call.inputs)
    true = slot.gradient if is_input and not call.passed_through(slot) else slot.total
    if stats is None and true is not None and _noted(row, "in-place-view"):
        result.hidden += 1
        return
    result.compared += true is not None
    result.differences += stats_differences(stats, true, f"{at}.gradient", result.noise)


def _compare_parameters(rows: list[dict[str, Any]], truth: Truth, result: Comparison) -> None:
    have = {row["name"]: row for row in rows}
    for name in have.keys() ^ truth.parameters.keys():
        result.differences.append(f"{name}: parameter {'unknown' if name in have else 'missing'}")
    for name in have.keys() & truth.parameters.keys():
        value, gradient = truth.parameters[name]
        row, aliases = have[name], truth.parameter_aliases[name]
        if sorted(row["aliases"]) != sorted(aliases):
            result.differences.append(f"{name}: aliases {row['aliases']}, truly {aliases}")
        result.differences += stats_differences(row["value"], value, f"{name}.value")
        at = f"{name}.gradient"
        result.differences += stats_differences(row["gradient"], gradient, at, result.noise)
        result.compared += 2


def _noted(row: dict[str, Any], note: str) -> bool:
    return any(text.startswith(note) for text in row["notes"])


def _largest(truth: Truth) -> float:
    """The largest norm of a parameter's gradient."""
    found = (gradient for _, gradient in truth.parameters.values() if gradient is not None)
    return max((statistics(gradient)["norm"] or 0.0 for gradient in found), default=0.0)


def stats_differences(
    stats: dict[str, Any] | None, tensor: Any, at: str, noise: float = 0.0
) -> Iterator[str]:
    if stats is None or tensor is None:
        if (stats is None) != (tensor is None):
            yield f"{at}: {'null' if stats is None else 'a number'}, truly the other"
        return
    # What cancels to zero in one order of addition leaves a rounding error in another.
    nothing = int((tensor.abs() <= noise).sum()) if noise else 0
    yield from number_differences(stats, statistics(tensor), at, noise, nothing)


def number_differences(
    stats: dict[str, Any], true: dict[str, Any], at: str, noise: float = 0.0, nothing: int = 0
) -> Iterator[str]:
    """Yield the places where ``stats`` are wrong; up to ``nothing`` zeros may be rounding
    errors.
    """
    for key in ("shape", "dtype", "numel", "zeros", "nan", "inf"):
        if stats[key] != true[key] and not (key == "zeros" and stats[key] <= nothing):
            yield f"{at}.{key}: {stats[key]}, truly {true[key]}"
    finite = true["numel"] - true["nan"] - true["inf"]
    rms = true["norm"] / math.sqrt(finite) if finite else 0.0
    for key in ("norm", "mean", "std", "min", "max"):
        value = true[key]
        if value is None or math.isinf(value):  # nothing finite, or more than float64 holds
            if stats[key] not in ((0, None) if key == "norm" else (None,)):
                yield f"{at}.{key}: {stats[key]}, truly nothing"
            continue
        bound = 1e-5 * abs(value)
        if key == "mean":
            bound = 1e-5 * rms
        elif key == "std":
            bound = max(1e-3 * value, 1e-5 * rms)
        bound = max(bound, noise)
        if not _close(stats[key], value, bound):
            yield f"{at}.{key}: {stats[key]}, truly {value}"
    yield from _value_differences(stats.get("values"), true.get("values"), at, noise)


def _value_differences(values: Any, true: Any, at: str, noise: float) -> Iterator[str]:
    if values is None or true is None:
        if values is not true:
            yield f"{at}.values: {values}, truly {true}"
        return
    parts, true_parts = list(_flat(values)), list(_flat(true))
    finite = [abs(x) for x in true_parts if not isinstance(x, str)]
    bound = max(1e-5 * max(finite, default=0.0), noise)
    same = len(parts) == len(true_parts) and all(
        x == y if isinstance(y, str) else _close(x, y, bound)
        for x, y in zip(parts, true_parts, strict=True)
    )
    if not same:
        yield f"{at}.values: {values}, truly {true}"


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _close(value: Any, true: float, bound: float) -> bool:
    if isinstance(value, str) or value is None:
        return False
    return bool(abs(value - true) <= bound)
