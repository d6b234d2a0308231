"""GS209: a residual block that adds nothing."""

from __future__ import annotations

from statistics import median

from gradscope.records.transformer import ResidualCall
from gradscope.rules._history import SampleHistory
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent

RULE = Rule(
    code="GS209",
    name="idle-block",
    severity="warning",
    summary="a residual block adds almost nothing to its input, while the others do",
    what=(
        "Reads the share that each block adds to the residual stream: the norm of the difference "
        "between output and input over the norm of the output. It fires if that stays close to 0 "
        "in one block over many samples, and is far larger in the median block."
    ),
    why=(
        "The block passes its input on: its parameters and its compute are wasted. Its branch is "
        "multiplied by zero, its activations are dead, or its last layer starts at zero and does "
        "not train. A block that starts at zero and trains leaves zero soon."
    ),
    fix=(
        "Check what multiplies the branch (a gate, a layer scale, a drop rate of 1), that its "
        "last layer is in the optimizer, and that a gradient arrives in it."
    ),
    sources=(
        "Bachlechner et al. 2020, ReZero (arXiv 2003.04887): gates that start at zero",
        "Men et al. 2024, ShortGPT (arXiv 2403.03853): blocks whose output is like their input",
    ),
    thresholds=(
        Threshold("added", 1e-3, "share added by the block, below which it fires", OWN),
        Threshold(
            "others",
            20,
            ("the median block's share divided by this block's, above which it fires"),
            OWN,
        ),
        Threshold("samples", 8, "earlier samples needed to judge", OWN),
    ),
    calibration=(
        "Of 14 healthy trainings of small transformers, 320 to 600 steps long, 0 of 14 fire, "
        "also with gates that begin at zero, and 1 of 1 broken ones is found. Healthy blocks add "
        "2 % or more."
    ),
    runs=Runs(samples=8, samples_before="samples", calls=True, structure="residual"),
)


def find_over_samples(history: SampleHistory, limits: Limits) -> Findings:
    """Yield one finding per block."""
    blocks = [
        (part.now.added, part)
        for part in history.parts
        if isinstance(part.now, ResidualCall) and part.now.added is not None
    ]
    if len(blocks) < 3:
        return
    usual = median(added for added, _ in blocks)
    for added, part in blocks:
        idle = added < limits["added"] and added * limits["others"] <= usual
        if idle and part.count > limits["samples"]:
            yield RULE.finding(
                part.now.name,
                f"it adds {percent(added)} to its input, and the median block {percent(usual)}.",
                call=part.now.call,
                value=added,
                limit=limits.of("added"),
            )
