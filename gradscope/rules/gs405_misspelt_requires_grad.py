"""GS405: a flag that was meant to be ``requires_grad``."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._reading import Tree
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS405",
    name="misspelt-requires-grad",
    severity="error",
    summary="a misspelt requires_grad has no effect",
    what=(
        "Finds plain attributes of parameters and modules with a name close to `requires_grad` "
        "and a value that contradicts the parameters. On a module, `requires_grad` itself is "
        "such an attribute: only `requires_grad_()` changes the parameters."
    ),
    why=(
        "Python accepts any attribute, so there is no error. Parameters that should be frozen "
        "train, or the other way round."
    ),
    fix="Write `parameter.requires_grad = …`, or `module.requires_grad_(…)` for a full module.",
    sources=(
        "udacity/deep-learning-v2-pytorch#12: `param.require_grad = False`",
        "SvenBecker/vscode-pytorch#8",
    ),
    runs=Runs(samples=1, parameters="all", at_attribute=True),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per attribute and outermost module."""
    written: dict[str, list[str]] = {}
    for parameter in report.parameters:
        for attribute in parameter.misspelt:
            written.setdefault(attribute, []).append(parameter.name)
    tree = Tree(report)
    trains = {p.name: p.requires_grad for p in report.parameters}
    for attribute, names in written.items():
        for name, names_inside in tree.gathered(names):
            still = "still trains" if trains[names_inside[0]] else "is still frozen"
            on = (
                "it"
                if len(names_inside) == 1
                else f"{plural(len(names_inside), 'parameter')} of it"
            )
            yield RULE.finding(
                name,
                f"`{attribute}` is set on {on}, which PyTorch does not read: it {still}.",
                value=float(len(names_inside)),
                cause=attribute,
            )
    for facts in report.modules:
        for attribute in facts.misspelt:
            yield RULE.finding(
                facts.name,
                f"`{attribute}` is set on this {facts.type}, which PyTorch does not read on a "
                "module: its parameters do not change.",
                cause=attribute,
            )
