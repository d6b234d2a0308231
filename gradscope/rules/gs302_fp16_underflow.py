"""GS302: gradients that half precision would flush to zero."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.report import Report
from gradscope.rules._reading import complete, is_half, middle, rms
from gradscope.rules._rule import Findings, Limits, Rule, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS302",
    name="fp16-underflow",
    severity="warning",
    summary="gradients would flush to zero in fp16, even at the usual loss scale",
    what=(
        "Forecasts the share of non-zero gradient elements that a cast to fp16 flushes to zero, "
        "at GradScaler's initial loss scale of 65536. It names the parameter that loses most, "
        "and the smallest safe scale. A model that itself runs in fp16 has no scaler here, and "
        "its flushed elements are lost: it fires if gradients are near the smallest fp16 number. "
        "It does not judge bfloat16, which has float32's range."
    ),
    why=(
        "The smallest fp16 number is 6e-8. Smaller values become exactly zero, and a layer with "
        "only such gradients does not learn. No error says so."
    ),
    fix="Train in bfloat16, or with a loss scale that is at least the safe one.",
    sources=(
        "Micikevicius et al. 2018, Mixed precision training: values below 2^-24 become 0",
        "TransformerEngine, debug features: underflow as the share of non-zero elements that "
        "become 0",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 1 of 28 fires (a fresh CaiT, whose branches "
        "begin with a scale of 1e-05, and whose gradients would indeed be lost), and 2 of 2 "
        "broken programs do. `share` could lie anywhere from 5e-05 to 0.15."
    ),
    thresholds=(
        Threshold("share", 0.05, "flushed share of all non-zero elements, above which it fires"),
        Threshold(
            "suspicion",
            1e-6,
            "median root mean square of a parameter's gradient, below which it fires for a model "
            "in fp16; other models get a forecast below 65536 times this",
        ),
    ),
    # The forecast is a full sample. A run in fp16 has a loss scale, which a sample does not record.
    runs=None,
)
#: Initial scale of torch.amp.GradScaler.
_USUAL = 65536.0


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request a forecast, if gradients are small relative to the smallest fp16 number."""
    usual = _usual(report)
    if usual is not None and _applies(report) and usual * _USUAL < limits["suspicion"]:
        yield "precision"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for the full run, at the parameter that loses most."""
    if is_half(report):
        yield from _half(report, limits)
        return
    scale, limit = _USUAL, limits["share"]
    forecasts = [one for one in report.precision if one.dtype == "float16"]
    totals = {one.scale: one for one in forecasts if one.kind == "total"}
    if not _applies(report) or scale not in totals or totals[scale].underflow <= limit:
        return
    lost = totals[scale].underflow
    # A gradient of a call's output has the call's number; a parameter's has none.
    parts = [
        one
        for one in forecasts
        if one.kind == "gradient" and one.scale == scale and one.call is None
    ]
    worst = max(parts, key=lambda one: one.underflow * one.numel, default=None)
    safe = [s for s, one in totals.items() if one.underflow <= limit and not one.overflow]
    smallest = f"the smallest safe scale is {number(min(safe))}" if safe else None
    best = smallest or "no scale up to 2^24 is safe"
    own = f", {percent(worst.underflow)} of this parameter's" if worst else ""
    yield RULE.finding(
        worst.name if worst else "",
        f"at a loss scale of {number(scale)} a cast to fp16 flushes {percent(lost)} of all "
        f"non-zero gradient elements to zero{own}; {best}.",
        advice=None if safe else "Train in bfloat16, which has float32's range.",
        value=lost,
        limit=limits.of("share"),
    )


def _applies(report: Report) -> bool:
    return complete(report) and "bfloat16" not in (report.run.dtype, report.run.autocast)


def _usual(report: Report) -> float | None:
    """Return the median over parameters of the gradient's root mean square."""
    return middle(size for p in report.parameters if (size := rms(p.gradient)))


def _half(report: Report, limits: Limits) -> Findings:
    """Yield findings of a run in fp16: flushed elements are lost, the others show the margin."""
    usual, limit = _usual(report), limits["suspicion"]
    if not _applies(report) or usual is None or usual >= limit:
        return
    sizes = {p.name: size for p in report.parameters if (size := rms(p.gradient))}
    name = min(sizes, key=lambda name: sizes[name])
    yield RULE.finding(
        name,
        "the run is in fp16 without a loss scale, and half of its gradients have a root mean "
        f"square below {number(usual)}. The smallest fp16 number is 5.96e-08; near it, fp16 has "
        "one or two digits.",
        value=usual,
        limit=limits.of("suspicion"),
    )
