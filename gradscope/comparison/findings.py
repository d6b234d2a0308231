"""Findings on two runs that every kind of comparison shares."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.diff import DiffReport
from gradscope.records.report import Finding

LOOK = "compare the code, the arguments and the dtype of this module in A and B"


def only_in_one(report: DiffReport) -> Iterator[Finding]:
    """What the other lacks."""
    for code, whose, names in (("GD103", "A", report.only_a), ("GD104", "B", report.only_b)):
        if names:
            yield Finding(
                code=code,
                rule=f"only-in-{whose.lower()}",
                severity="warning",
                name=names[0],
                message=f"{len(names)} modules and parameters are only in {whose}, and not "
                f"compared: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}",
                advice="map the names with `--match 'A=B'`",
            )


def other_weight(report: DiffReport, name: str) -> str:
    """The module's first parameter that is not A's."""
    for one in report.parameters:
        module, _, own = one.name.rpartition(".")
        if module == name and (one.value.error or 0) > report.step:
            return f"; its `{own}` differs from A's by {one.value.error:.1e}"
    return ""
