"""GS508: a layer whose own backward is not the derivative of its forward."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.full_samples import GradientCheck
from gradscope.records.report import Finding, Report
from gradscope.rules._rule import Limits, Rule

RULE = Rule(
    code="GS508",
    name="wrong-backward",
    severity="error",
    summary="a layer's backward is not the derivative of its forward",
    what=(
        "Reads the layers that `inspect --gradcheck LAYER` compared with finite differences, in "
        "float64 and on their inputs of the step: for an input or a parameter whose gradient is "
        "another one. A warning where backward gives other values when it is run again. A layer on "
        "a kink, which is right beside it, is left alone."
    ),
    why=(
        "A custom `autograd.Function` is trusted unchecked: training goes on with a gradient "
        "that points elsewhere, and no error says so."
    ),
    fix=(
        "Derive the backward of that input again, or leave it to autograd; check it alone with "
        "`torch.autograd.gradcheck`."
    ),
    sources=("PyTorch, torch.autograd.gradcheck: gradients against finite differences",),
    # A training run checks no layer.
    runs=None,
)


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One for each layer, at its first call and input that is wrong."""
    found: dict[str, GradientCheck] = {}
    for check in report.gradient_checks:
        if check.verdict in _MESSAGES:
            known = found.get(check.name)
            if known is None or (known.verdict != "wrong" and check.verdict == "wrong"):
                found[check.name] = check
    for name, check in found.items():
        wrong = check.verdict == "wrong"
        yield RULE.finding(
            name,
            _MESSAGES[check.verdict].format(input=_input(check)),
            severity=None if wrong else "warning",
            call=check.call,
            value=check.backward if wrong else None,
            threshold=check.differences if wrong else None,
            source="finite differences" if wrong else None,
        )


def _input(check: GradientCheck) -> str:
    return check.input if check.input.startswith("input ") else f"`{check.input}`"


_MESSAGES = {
    "wrong": "the gradient of {input} is not that of finite differences",
    "non-deterministic": "what the layer computes is another when it is run again",
}
