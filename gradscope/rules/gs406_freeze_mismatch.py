"""GS406: the config's freeze patterns against the frozen parameters."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.patterns import Named, Pattern
from gradscope.records.modules import ParameterStats
from gradscope.records.report import Report
from gradscope.rules._reading import Tree
from gradscope.rules._rule import Findings, Limits, Rule
from gradscope.rules._words import plural

RULE = Rule(
    code="GS406",
    name="freeze-mismatch",
    severity="warning",
    summary="the config freezes a parameter, but it trains",
    what=(
        "Checks that the parameters named by the config's `freeze` patterns required no gradient "
        "in the run."
    ),
    why=(
        "The model's code undid the freeze: its `train()` or `forward` sets `requires_grad` "
        "again, or a layer replaces its parameters."
    ),
    fix="Search the model's `train` and `forward` for `requires_grad`, and do not set it there.",
    sources=("pgniewko/gt-pyg#112: a freeze that the next train() undoes",),
    # A script has no config that freezes.
    runs=None,
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per outermost module."""
    patterns = report.config.get("freeze") or ()
    if isinstance(patterns, str) or not all(isinstance(text, str) for text in patterns):
        return
    parsed = [Pattern(text) for text in patterns]
    thawed = [p.name for p in report.parameters if p.requires_grad and _asked(p, parsed)]
    for name, names_inside in Tree(report).gathered(thawed):
        them = "it" if len(names_inside) == 1 else f"its {plural(len(names_inside), 'parameter')}"
        yield RULE.finding(
            name,
            f"`freeze` names {them}, and in the run "
            f"{'it requires' if len(names_inside) == 1 else 'they require'} a gradient.",
            value=float(len(names_inside)),
        )


def _asked(parameter: ParameterStats, patterns: Sequence[Pattern]) -> bool:
    """Return True if the patterns freeze a parameter: the last that matches wins."""
    named, frozen = Named(parameter.name, parameter.aliases), False
    for pattern in patterns:
        if pattern.matches(named):
            frozen = not pattern.negated
    return frozen
