"""GS908: a packed document depends on the other documents of its row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.report import Finding, Report
from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS908",
    name="sees-other-documents",
    severity="error",
    summary="a packed document depends on the other documents of its row",
    what=(
        "Gives one document of a row other content: outputs at the others must keep every bit. An "
        "input has to say which document a position belongs to."
    ),
    why="The model learns from neighbours that it will not have, and from where it was packed.",
    fix="Mask all pairs of positions whose document differs, and restart states and positions.",
    sources=("Krell et al. 2021, Efficient Sequence Packing without Cross-contamination",),
    runs=None,
    on_demand=True,
)


def wants(report: Report, limits: Limits) -> Iterable[str]:
    """Forward passes that differ in one place."""
    return unjudged(report)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """The call that lets it through."""
    return leaking(report, RULE, "documents")
