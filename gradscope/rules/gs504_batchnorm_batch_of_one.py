"""GS504: batch statistics of a batch of one."""

from __future__ import annotations

import math

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import others

RULE = Rule(
    code="GS504",
    name="batchnorm-batch-of-one",
    severity="error",
    summary="a BatchNorm in train mode takes its statistics from one sample",
    what=(
        "Finds BatchNorm layers in train mode whose input has one sample, or one value per "
        "channel, where PyTorch raises. SyncBatchNorm does not count: it sees the samples of "
        "other processes."
    ),
    why=(
        "Each sample is normalized by its own mean and variance: differences between samples are "
        "erased, and the running statistics fit no sample."
    ),
    fix=(
        "Use a larger batch, `drop_last=True` if the last batch has one sample, GroupNorm or "
        "LayerNorm, or put the norms into eval mode."
    ),
    sources=(
        "pytorch/pytorch#4534: expected more than 1 value per channel when training",
        "Wu and He 2018, Group normalization",
    ),
    thresholds=(
        Threshold(
            "samples",
            2,
            "samples in a batch, below which it fires",
            source="the variance of one sample is zero",
        ),
    ),
    # The last batch of an epoch may well be one sample.
    runs=Runs(per="model", parameters="all", calls=True),
)
_RAISED = "more than 1 value per channel"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for the run, at the first such norm."""
    error = report.error
    if error is not None and _RAISED in error.message:
        yield RULE.finding(
            error.name or "",
            "it raised: in train mode it got one value per channel, which has no variance.",
            call=error.call,
            value=1.0,
            limit=limits.of("samples"),
            location=error.location,
        )
        return
    norms = {f.name for f in report.modules if "_BatchNorm" in f.kinds}
    found = [
        (call, samples)
        for call in sorted(report.calls, key=lambda call: call.order)
        if call.training and (call.name in norms or call.type in _TYPES)
        if (samples := _samples(call)) is not None and samples < limits["samples"]
    ]
    if found:
        call, samples = found[0]
        shape = call.inputs[0].activation.shape
        yield RULE.finding(
            call.name,
            f"in train mode it takes its statistics from {samples} "
            f"sample{'' if samples == 1 else 's'}, {math.prod(shape[2:]) * samples:,} values per "
            f"channel{others(len(found) - 1, 'norm')}.",
            call=call.call,
            value=float(samples),
            limit=limits.of("samples"),
        )


_TYPES = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


def _samples(call: ModuleCall) -> int | None:
    shape = call.inputs[0].activation.shape if call.inputs else ()
    return shape[0] if len(shape) > 1 and call.type != "SyncBatchNorm" else None
