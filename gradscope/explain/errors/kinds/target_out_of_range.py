"""Explains class ids that are out of range for a loss: their values, their number and their
places."""

from __future__ import annotations

import re

from gradscope.explain.errors.explanation import Case, Explanation, Kind, Operand, first_explanation
from gradscope.explain.errors.kinds import index_out_of_range
from gradscope.explain.errors.kinds.index_out_of_range import id_range
from gradscope.explain.shared.operations import Trait, by_function


def explain(case: Case) -> Explanation | None:
    """Explain class ids that exceed the number of classes."""
    return first_explanation(case, (_target, index_out_of_range.explain))


def _target(case: Case) -> Explanation | None:
    failed = case.failed
    if not by_function(failed.function).has(Trait.CLASSES) or len(failed.operands) < 2:
        return None
    output, target = failed.operands[:2]
    axis = 1 if len(output.shape) > 1 else 0
    classes = output.shape[axis]
    made = f" of `{output.maker}`" if output.maker else ""
    found = re.search(r"Target (-?\d+) is out of bounds", case.text)
    odd = f", among them {found[1]}" if found and target.low != target.high else ""
    fact = (
        f"the target has values {id_range(target)}{odd}; the output{made} {list(output.shape)} has"
        f" {classes} classes, 0 to {classes - 1}."
    )
    return Explanation(fact, _advice(target, classes, output.maker))


def _advice(target: Operand, classes: int, layer: str | None) -> str:
    low, high = target.low, target.high
    if low is None or high is None:
        return f"give class ids from 0 to {classes - 1}"
    last = f"`{layer}`" if layer else "the last layer"
    if low < 0:
        return f"if {low} marks entries without a label, pass `ignore_index={low}` to the loss"
    if high == 255 and classes < 255:
        return "if 255 marks entries without a label, pass `ignore_index=255` to the loss"
    if low >= 1 and high == classes:
        return f"if the ids count from 1, take `target - 1`; else give {last} {high + 1} outputs"
    return f"give {last} {high + 1} outputs, or ids up to {classes - 1}"


_SIGN = r"target .* out of bounds|label .* out of range"
_ADVICE = "class ids, the config's `target`, run from 0 to the number of classes less one"
KIND = Kind({_SIGN: _ADVICE}, explain)
