"""Remarks on rows: a raised number beside the name, its sentence under the table."""

from __future__ import annotations

from collections.abc import Sequence

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_remarks(remarks: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """For each row its marks, and the sentences in order; equal remarks share a number."""
    numbers: dict[str, str] = {}
    marks = []
    for of_row in remarks:
        for remark in of_row:
            numbers.setdefault(remark, str(len(numbers) + 1).translate(_RAISED))
        marks.append(" ".join(numbers[remark] for remark in dict.fromkeys(of_row)))
    return marks, [f"{mark} {remark}" for remark, mark in numbers.items()]
