"""GS618: two kinds of optimizers with one learning rate, and updates of different sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS618",
    name="unequal-updates",
    severity="warning",
    summary="two optimizers of one model have the same learning rate, and one moves its weights "
    "much less",
    what=(
        "Compares, over the sampled steps, the root mean square of the median weight's update "
        "between optimizers of different classes that train one model. It fires where their "
        "learning rates are about equal and the updates are not. Rates that differ were chosen for "
        "each, and do not count."
    ),
    why=(
        "A learning rate means another step in each optimizer. Muon's update of a matrix of n rows "
        "or more has a root mean square of about lr/√n, AdamW's one of 0.2 to 0.4 lr. With one "
        "rate for both, one part of the model hardly trains."
    ),
    fix=(
        "Scale Muon's rate by 0.2·√max(rows, columns), as `adjust_lr_fn=\"match_rms_adamw\"` of "
        "`torch.optim.Muon` does, or give each optimizer a rate of its own."
    ),
    sources=(
        "Liu et al. 2025, Muon is scalable for LLM training (arXiv 2502.16982), section 2.2: "
        "matching the update RMS of AdamW, 0.2",
        "PyTorch, torch.optim.Muon: adjust_lr_fn",
    ),
    thresholds=(
        Threshold("ratio", 10, "the larger update over the smaller one, above which it fires",
                  CHOSEN),
        Threshold("rates", 2, "the larger learning rate over the smaller one, at most", CHOSEN),
        Threshold("samples", 5, "samples of each, below which it does not judge", CHOSEN),
    ),
    runs=Runs(loop=True),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each pair of optimizers of one model."""
    kinds = {one.name: one for one in loop.optimizers}
    known = [
        one
        for one in loop.weights
        if one.samples >= limits["samples"] and one.rms > 0 and one.rate > 0
    ]
    for pair in combinations(known, 2):
        low, high = sorted(pair, key=lambda one: one.rms)
        slow, fast = kinds.get(low.optimizer), kinds.get(high.optimizer)
        if low.model != high.model or slow is None or fast is None or slow.kind == fast.kind:
            continue
        rates = sorted((low.rate, high.rate))
        if rates[1] > limits["rates"] * rates[0] or high.rms <= limits["ratio"] * low.rms:
            continue
        yield at(
            RULE.finding(
                slow.name,
                f"with a learning rate of {low.rate:g}, an update of `{slow.name}` ({slow.kind}) "
                f"has a root mean square of {number(low.rms)}, one of `{fast.name}` ({fast.kind}, "
                f"{high.rate:g}) one of {number(high.rms)}.",
                value=high.rms / low.rms,
                limit=limits.of("ratio"),
                location=slow.location,
            ),
            loop,
        )
