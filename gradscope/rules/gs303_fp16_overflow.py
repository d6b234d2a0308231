"""GS303: activations without head-room in half precision."""

from __future__ import annotations

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.rules._reading import is_half, largest
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, others

RULE = Rule(
    code="GS303",
    name="fp16-overflow",
    severity="warning",
    summary="activations reach the end of fp16's range",
    what=(
        "Compares the largest absolute activation of every call with 65504, the largest fp16 "
        "number, and names the first layer with less head-room than the limit. Values that can "
        "only be a mask (beyond 1e30, or exactly 65504) and runs in bfloat16 do not count."
    ),
    why=(
        "Beyond 65504 an fp16 number is Inf, and Inf - Inf or Inf * 0 is NaN. The same network "
        "trains well in float32, and fails when it is moved to fp16."
    ),
    fix=(
        "Train in bfloat16, or reduce the values before the named layer: normalise the inputs, "
        "scale the branch, or run that layer in float32."
    ),
    sources=(
        "Micikevicius et al. 2018, Mixed precision training: the largest half is 65504",
        "huggingface/transformers#5651: 66246 in T5's feed-forward part",
    ),
    calibration=(
        "Of 28 healthy models, fresh and trained, 0 of 28 fire, and 2 of 2 broken programs do. "
        "The largest healthy activation is 24, so that no limit up to 2e+03 would change this."
    ),
    thresholds=(
        Threshold("headroom", 2, "65504 divided by the largest activation, below which it fires"),
    ),
    runs=Runs(per="model", calls=True),
)
_LARGEST = 65504.0
_MASK = 1e30


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding at the first layer; those downstream often inherit the values."""
    if "bfloat16" in (report.run.dtype, report.run.autocast):
        return
    limit = limits["headroom"]
    reached = [(call, size) for call in report.calls if (size := _reach(call)) is not None]
    near = [(call, size) for call, size in reached if size * limit > _LARGEST]
    # A container returns the output of its last layer.
    inner = [(call, size) for call, size in near if not any(_in(other, call) for other, _ in near)]
    if not inner:
        return
    call, size = min(inner, key=lambda pair: pair[0].order)
    beyond = "which a half cannot hold" if size > _LARGEST else "near the largest half"
    yield RULE.finding(
        call.name,
        f"activations reach {number(size)}, {beyond} (65504){others(len(inner) - 1, 'layer')}.",
        call=call.call,
        value=_LARGEST / size,
        limit=limits.of("headroom"),
    )


def find_sampled(report: Report, limits: Limits) -> Findings:
    """Judge a run's step: a script in float32 or bfloat16 has no finding."""
    return find(report, limits) if is_half(report) else iter(())


def _reach(call: ModuleCall) -> float | None:
    sizes = [
        size
        for output in call.outputs
        if "float" in output.activation.dtype and (size := largest(output.activation)) is not None
    ]
    real = [size for size in sizes if size < _MASK and size != _LARGEST]
    return max(real, default=None)


def _in(inner: ModuleCall, outer: ModuleCall) -> bool:
    return inner is not outer and (not outer.name or inner.name.startswith(f"{outer.name}."))
