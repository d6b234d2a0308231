"""Shapes that a tensor cannot take: views, expansions, dimensions that it has not."""

from __future__ import annotations

import math
import re

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    factors,
    first_explanation,
)


def explain(case: Case) -> Explanation | None:
    """The tensor against the shape that was asked of it."""
    return first_explanation(case, (_viewed, _expanded, _dimension))


def _viewed(case: Case) -> Explanation | None:
    failed = case.failed
    if failed.layer is not None or not failed.operands:
        return None
    x = failed.operands[0]
    name = x.text or "x"
    if "view size is not compatible" in case.text:
        return Explanation(
            f"{x.label} is not contiguous, as after `transpose` or `permute`: no view of that shape"
            " exists.",
            f"use `{name}.reshape(…)`, or `{name}.contiguous().view(…)`",
        )
    found = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", case.text)
    if found is None:
        return None
    wanted = [int(n) for n in found[1].split(",")]
    known = math.prod([n for n in wanted if n >= 0])
    fact = f"{x.label} has {found[2]} elements, the shape {wanted} is of {known}"
    fact += f" · n: {found[2]} is not divisible by {known}." if -1 in wanted else "."
    parts = _split(x.shape, wanted)
    if parts is not None:
        full, kept = parts
        return Explanation(
            (
                fact,
                f"{factors(kept)} = {math.prod(kept)} is not the {full} of the last dimension:"
                f" {full} does not divide into {kept[0]}.",
            ),
            f"choose a number that divides {full}, such as {_divisors(full)}",
        )
    if -1 not in wanted and x.shape and wanted and x.shape[0] != wanted[0]:
        return Explanation(
            fact, f"take the batch from the tensor: `{name}.view({name}.size(0), -1)`"
        )
    return Explanation(fact, f"make the sizes multiply to {found[2]}, or leave one of them to `-1`")


def _split(shape: tuple[int, ...], wanted: list[int]) -> tuple[int, list[int]] | None:
    """The last dimension and what it was to be split into, where the others stay."""
    same = len(shape) - 1
    if same < 1 or list(shape[:same]) != wanted[:same] or len(wanted) <= len(shape):
        return None
    kept = wanted[same:]
    return None if -1 in kept else (shape[-1], kept)


def _divisors(full: int) -> str:
    found = [n for n in range(1, full + 1) if full % n == 0][:6]
    return ", ".join(map(str, found))


def _expanded(case: Case) -> Explanation | None:
    failed = case.failed
    found = re.search(
        r"expanded size of the tensor \((-?\d+)\) must match the existing size \((\d+)\) at"
        r" non-singleton dimension (\d+).*Target sizes: (\[.*?\])",
        case.text,
    )
    if found is None or not failed.operands:
        return None
    x = failed.operands[0]
    return Explanation(
        f"{x.label} cannot become {found[4]}: only dimensions of 1 expand, and dimension {found[3]}"
        f" must be {found[1]} and has {found[2]}.",
        f"ask for {found[2]} there, or make `{x.text or 'it'}` {found[1]} long: where it is a table"
        " of positions, the input is longer than the table",
    )


def _dimension(case: Case) -> Explanation | None:
    failed = case.failed
    found = re.search(r"Dimension out of range .*but got (-?\d+)", case.text)
    if found is None or not failed.operands:
        return None
    x = failed.operands[0]
    count = len(x.shape)
    last = f"0 to {count - 1}" if count > 1 else "0"
    return Explanation(
        f"`{failed.function}` asks for dimension {found[1]} of {x.label}, which has"
        f" dimensions {last}.",
        "count from the end, `-1` for the last, or keep the missing dimension",
    )
