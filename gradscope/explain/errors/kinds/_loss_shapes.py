"""Shapes of an output and a target that a loss cannot compare."""

from __future__ import annotations

import re

from gradscope.explain.errors.explanation import Case, Explanation, first_explanation
from gradscope.explain.shared.operations import Trait, by_function


def explain(case: Case) -> Explanation | None:
    """The output against the target."""
    return first_explanation(case, (_classes, _compared))


def _classes(case: Case) -> Explanation | None:
    """Cross entropy and its like: classes at dimension 1, one target for each place."""
    sides = case.failed.sides
    if sides is None or not by_function(case.failed.function).has(Trait.CLASSES):
        return None
    output, target = sides
    fact = f"the output is {list(output.shape)}, the target {list(target.shape)}"
    o, t = output.shape, target.shape
    if len(o) > 2 and t == o[:-1] and t != (o[0], *o[2:]):
        return Explanation(
            f"{fact}: the classes must be at dimension 1, and {o[-1]} are last.",
            "move them: `output.transpose(1, 2)`, or flatten both:"
            f" `output.flatten(0, {len(o) - 2})` and `target.flatten()`",
        )
    if len(o) == 2 and len(t) == 2 and t[1] == 1:
        return Explanation(f"{fact}: class ids have one dimension.", "drop it: `target.squeeze(1)`")
    if o and t and o[0] != t[0]:
        return Explanation(
            f"{fact}: {o[0]} predictions, but {t[0]} targets.",
            _fewer(o[0], t[0])
            if len(o) == 2 and len(t) == 1
            else "flatten both sides or none: `output.view(-1, classes)` goes with"
            " `target.view(-1)`; for next words shift both by one",
        )
    return Explanation(f"{fact}.", "give one class id for each prediction: [N] for [N, C]")


def _fewer(rows: int, targets: int) -> str:
    flat = "`output.view(-1, classes)` goes with `target.view(-1)`"
    if rows % targets and targets % rows:
        return (
            f"give {rows} targets, one for each row, from the same samples in one batch; if rows"
            f" were flattened, {flat}, and for next words shift both by one"
        )
    return f"flatten both sides or none: {flat}; else give {rows} targets, one for each row"


def _compared(case: Case) -> Explanation | None:
    """A loss that compares elements."""
    sides = case.failed.sides
    if sides is None or not re.search(r"[Tt]arget size|target and input", case.text):
        return None
    output, target = sides
    fact = f"the output is {list(output.shape)}, the target {list(target.shape)}."
    if output.shape == (*target.shape, 1):
        fix = "drop the output's last dimension: `output.squeeze(1)`; or `target.unsqueeze(1)`"
    elif target.shape == (*output.shape, 1):
        fix = "drop the target's last dimension: `target.squeeze(1)`"
    else:
        fix = "give both the same shape"
    return Explanation(fact, fix)
