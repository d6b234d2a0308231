"""GS301: the origin of a NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.report import Finding, Report
from gradscope.rules._history import StepHistory
from gradscope.rules._reading import nonfinite
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import listed, plural, sentence

RULE = Rule(
    code="GS301",
    name="non-finite",
    severity="error",
    summary="an operation makes a NaN or Inf",
    what=(
        "Finds NaN and Inf in the loss, in parameters, in gradients and in activations. A full "
        "sample then finds the origin: the operation that produced it from finite numbers, those "
        "numbers, and the values it spread to. A NaN that reached neither the loss nor a "
        "gradient is a warning. An Inf that reached neither, such as that of an attention mask, "
        "is not a finding."
    ),
    why=(
        "One NaN can reach every weight in one optimizer step, and all activations of the next "
        "forward. Its origin is then hard to see."
    ),
    fix="Fix the named operation: keep its input away from the value that causes the NaN or Inf.",
    sources=(
        "pytorch/pytorch#6394: the derivative of sqrt at 0",
        "pytorch/pytorch#41508: softmax over a row that is masked entirely",
        "SageMaker Debugger, ExplodingTensor",
    ),
    runs=Runs(samples=1, metrics=("step",), per="run", parameters="all"),
    explains=("GS1", "GS2", "GS506", "GS60", "GS61", "GS620"),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the origins, if a NaN or Inf does harm."""
    if _damaged(report) or _activations(report):
        yield "non_finite"


def find(report: Report, limits: Limits) -> Findings:
    """Yield each origin; if no origin was searched, the first place with a NaN or Inf."""
    damaged = _damaged(report)
    for origin in report.non_finite:
        if damaged or origin.phase in ("loss", "parameter", "step"):
            yield _finding(origin, "error")
        elif origin.kind == "nan":
            yield _finding(origin, "warning")  # something took it out again before it did harm
    if damaged and not report.non_finite:
        name, message, count = damaged
        yield RULE.finding(name, f"{message}.", value=float(count))


def find_over_steps(history: StepHistory, limits: Limits) -> Findings:
    """Yield the finding of a run: a step taken with a NaN or Inf, if no origin was searched."""
    step = history.now
    if step.nonfinite is not None:
        kind = "a NaN" if step.nonfinite == "nan" else "an Inf"
        yield RULE.finding(
            "",
            f"the loss or a gradient of step {step.step} has {kind}, and the optimizer used it in "
            "its step.",
            value=1.0,
        )


def _finding(origin: NonFiniteOrigin, severity: str) -> Finding:
    spread = f" It spread to {listed(origin.spread)}." if origin.spread else ""
    reason = f" ({origin.reason})" if origin.reason and origin.reason not in origin.message else ""
    return RULE.finding(
        origin.name or "",
        f"{origin.message.rstrip('.')}{reason}.{spread}",
        severity=severity,
        advice=sentence(origin.advice) if origin.advice else None,
        call=origin.call,
        value=None if origin.count is None else float(origin.count),
        cause=origin.phase,
        location=origin.location,
    )


def _damaged(report: Report) -> tuple[str, str, int] | None:
    """Return the place of a NaN or Inf that did harm: name, sentence, number of elements."""
    for p in report.parameters:
        if count := nonfinite(p.value):
            return p.name, f"the parameter has {plural(count, 'NaN or Inf element')}", count
    if report.loss_nonfinite is not None:
        call = _activations(report)
        where = f", and `{call}` is the first to return such values" if call else ""
        return call or "", f"the loss is {report.loss_nonfinite}{where}", 1
    for p in report.parameters:
        if count := nonfinite(p.gradient):
            return p.name, f"its gradient has {plural(count, 'NaN or Inf element')}", count
    return None


def _activations(report: Report) -> str | None:
    """Return the first innermost call that returns NaN or Inf without getting any."""
    found = [
        call
        for call in report.calls
        if any(nonfinite(output.activation) for output in call.outputs)
        and not any(nonfinite(one.activation) for one in call.inputs)
    ]
    names = [call.name for call in found]
    inner = [
        call
        for call in found
        if not any(
            other and (not call.name or other.startswith(f"{call.name}.")) for other in names
        )
    ]
    return min(inner, key=lambda call: call.order).name if inner else None
