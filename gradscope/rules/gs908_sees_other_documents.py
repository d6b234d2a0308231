"""GS908: a packed document depends on the other documents of its row."""

from __future__ import annotations

from gradscope.rules._leaks import leaking, unjudged
from gradscope.rules._rule import Rule

RULE = Rule(
    code="GS908",
    name="sees-other-documents",
    severity="error",
    summary="a packed document depends on the other documents of its row",
    what=(
        "Replaces one document of a row: outputs of the others must stay the same to the last "
        "bit. It needs an input that gives the document of each position."
    ),
    why="The model learns from neighbours and positions that it will not have at inference.",
    fix="Mask all pairs of positions in different documents, and restart states and positions.",
    sources=("Krell et al. 2021, Efficient Sequence Packing without Cross-contamination",),
    runs=None,
    on_demand=True,
)

wants = unjudged
find = leaking(RULE, "documents")
