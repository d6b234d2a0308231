"""GS872: the log-probability of another draw than the one that was used."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS872",
    name="other-action",
    severity="error",
    summary="`log_prob` gets a second draw, not the action that was drawn first",
    what=(
        "Follows the draws of each distribution of `torch.distributions` within a step. It fires "
        "if `log_prob` gets a later draw that nothing else uses, `d.log_prob(d.sample())`, and "
        "never the first one. A second draw for an estimate of the entropy is silent: there, "
        "`log_prob` gets the first one too, or a stack of them. The first one may be drawn without "
        "gradients, in a rollout."
    ),
    why=(
        "The reward belongs to the first draw. The gradient of an independent one has the "
        "expectation 0: the policy does a random walk."
    ),
    fix="Keep the action: `a = d.sample()`, then `d.log_prob(a)`.",
    sources=(
        "PyTorch, torch.distributions, score function: log_prob of the action that was taken",
        "Williams 1992, Simple statistical gradient-following algorithms (REINFORCE)",
    ),
    thresholds=(Threshold("share", 0.9, "share of the steps, at or above which it fires", CHOSEN),),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each pair of lines."""
    steps = min((one.steps for one in loop.optimizers if one.steps), default=loop.steps)
    for one in loop.facts_of("other-draw"):
        if not enough(loop, one.count) or one.count < limits["share"] * steps:
            continue
        kind, first = one.words
        yield RULE.in_loop(
            loop,
            "",
            f"`log_prob` gets a second draw of `{kind}`, and never the one at {first}, "
            f"{in_steps(one.count, max(steps, one.count))}: the gradient is that of another "
            "action.",
            value=float(one.count),
            limit=limits.of("share"),
            location=one.location,
        )
