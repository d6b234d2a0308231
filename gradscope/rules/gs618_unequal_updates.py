"""GS618: two kinds of optimizers with one learning rate, and updates of different sizes."""

from __future__ import annotations

from itertools import combinations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS618",
    name="unequal-updates",
    severity="warning",
    summary="with the same learning rate, one of a model's two optimizers moves its weights far "
            "less",
    what=(
        "Compares optimizers of different classes that train one model, by the root mean square "
        "of their median weight's update over the sampled steps. It fires if their learning "
        "rates are about equal and the updates are not. Different rates do not count: they were "
        "chosen for each."
    ),
    why=(
        "The same learning rate gives each optimizer a different step. Muon's update of a matrix "
        "of n rows or more has a root mean square of about lr/√n, AdamW's 0.2 to 0.4 lr. With "
        "one rate for both, one part of the model hardly trains."
    ),
    fix=(
        "Scale Muon's rate by 0.2·√max(rows, columns), as `adjust_lr_fn=\"match_rms_adamw\"` of "
        "`torch.optim.Muon` does, or give each optimizer its own rate."
    ),
    sources=(
        "Liu et al. 2025, Muon is scalable for LLM training (arXiv 2502.16982), section 2.2: "
        "matching the update RMS of AdamW, 0.2",
        "PyTorch, torch.optim.Muon: adjust_lr_fn",
    ),
    thresholds=(
        Threshold("ratio", 10, "the larger update divided by the smaller one, above which it fires",
                  CHOSEN),
        Threshold("rates", 2, (
            "the larger learning rate divided by the smaller one, below which it fires"
        ), CHOSEN),
        Threshold("samples", 5, "samples of each needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each pair of optimizers of one model."""
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
        yield RULE.in_loop(
            loop,
            slow.name,
            f"with a learning rate of {low.rate:g}, updates of `{slow.name}` ({slow.kind}) "
            f"have a root mean square of {number(low.rms)}; updates of `{fast.name}` "
            f"({fast.kind}, {high.rate:g}) have {number(high.rms)}.",
            value=high.rms / low.rms,
            limit=limits.of("ratio"),
            location=slow.location,
        )
