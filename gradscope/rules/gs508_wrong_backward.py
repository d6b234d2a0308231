"""GS508: a layer whose own backward is not the derivative of its forward."""

from __future__ import annotations

from gradscope.records.full_samples import GradientCheck
from gradscope.records.loop import LoopRecord
from gradscope.records.report import Report
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import number

RULE = Rule(
    code="GS508",
    name="wrong-backward",
    severity="error",
    summary="a layer's backward is not the derivative of its forward",
    what=(
        "Reads what `inspect --gradcheck LAYER` found: it compares each gradient of the layer "
        "with finite differences, in float64, on the layer's inputs of that step. It fires if a "
        "gradient differs. It is a warning if backward gives other values when it is run again. "
        "If the input lies at a kink, such as 0 for ReLU, it is silent if the gradient is right "
        "next to the kink. In a training run, it checks each small `autograd.Function` of the "
        "script once, on the arguments of a sampled step. Step functions (`sign`, `round`) and "
        "functions that return their input have another backward on purpose: they are not judged."
    ),
    why=(
        "PyTorch does not check a custom `autograd.Function`: training goes on with a wrong "
        "gradient, without an error."
    ),
    fix=(
        "Derive that input's gradient again, or leave it to autograd. Check the function alone "
        "with `torch.autograd.gradcheck`."
    ),
    sources=("PyTorch, torch.autograd.gradcheck: gradients against finite differences",),
    runs=Runs(loop=True),
    explains=("GS101", "GS102", "GS103", "GS603", "GS605", "GS610", "GS613"),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for each layer, at its first wrong call and input."""
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


_CHAIN = "Multiply by `grad_output`, the gradient that comes in: the chain rule."


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each function of the script."""
    for one in loop.functions:
        if one.flat:
            continue
        gives = "zeros" if one.zeros else number(one.backward)
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}.backward` is not the derivative of its forward: for argument "
            f"{one.input + 1} it gives {gives} in a random direction; finite differences give "
            f"{number(one.differences)} (float64, arguments of step {one.step})."
            + (" It ignores `grad_output`." if one.ignores else ""),
            advice=_CHAIN if one.ignores else None,
            value=one.backward,
            threshold=one.differences,
            source="finite differences",
            location=one.location,
        )


def _input(check: GradientCheck) -> str:
    return check.input if check.input.startswith("input ") else f"`{check.input}`"


_MESSAGES = {
    "wrong": "the gradient of {input} differs from finite differences",
    "non-deterministic": "the layer computes other values when it is run again",
}
