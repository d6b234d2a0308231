"""GS402: a module that forward never ran."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records import Finding, Report
from gradscope.rules._reading import never_called
from gradscope.rules._rule import Limits, Rule
from gradscope.rules._words import plural

RULE = Rule(
    code="GS402",
    name="never-called",
    severity="error",
    summary="a module with trainable parameters never ran",
    what=(
        "Looks for modules that forward never called and whose parameters got no gradient either; "
        "both are asked for, as some modules lend their weights without being called (the out_proj "
        "of nn.MultiheadAttention). It names the outermost such module. In eval mode it is a "
        "warning: heads that only training uses are left out there."
    ),
    why=(
        "The layer that you think is there is not: its parameters are stored, counted and saved, "
        "and never trained or used."
    ),
    fix="Call the module in `forward`, or remove it.",
    sources=("PyTorch, DistributedDataParallel: find_unused_parameters",),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """The cause of what is missing: a parameter may be used though its module never ran."""
    if never_called(report):
        yield "missing"


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One finding per outermost module."""
    for name, behind in never_called(report).items():
        yield RULE.finding(
            name,
            f"forward never ran this module, and its {plural(len(behind), 'parameter')} got no "
            "gradient.",
            severity="warning" if report.run.mode == "eval" else None,
            value=float(len(behind)),
            cause="not-called",
        )
