"""GS834: a loss that is maximised."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LossTargets
from gradscope.rules._loop import LoopFindings, enough, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS834",
    name="ascended-loss",
    severity="warning",
    summary="a loss that should be minimised is maximised",
    what=(
        "Reads the graph of the loss in the sampled steps. It fires if backward starts at the "
        "negative of a cross entropy, a binary cross entropy, or a squared or Huber loss alone, "
        "in a run with one optimizer. It also fires if an optimizer with `maximize=True` gets "
        "such a loss. Two other cases are an overlap with a constant target, an IoU or a Dice "
        "score, and log-probabilities of chosen actions times a variable named as returns, "
        "rewards or advantages, both with a plus. It reads the text for the ratio of PPO: "
        "`exp(old - new)`."
    ),
    why=(
        "Each step makes the answers worse: the loss grows without bound. Adversarial networks "
        "do so on purpose, with one optimizer each."
    ),
    fix=(
        "Remove the minus before the loss, or `maximize=True`. A policy gradient needs the minus: "
        "`-(log_prob * returns).sum()`. A loss of overlap is `1 - iou`."
    ),
    sources=(
        "PyTorch, torch.optim: maximize, maximize the objective instead of minimizing it",
        "PyTorch forum: loss becomes more and more negative",
        "PyTorch, torch.distributions, score function: loss = -m.log_prob(action) * reward",
    ),
    thresholds=(
        Threshold("share", 0.9, "share of the losses that were read, above which it fires", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS104", "GS601", "GS602", "GS604", "GS613", "GS621"),
)
_NAMES = {
    "NllLoss": "cross entropy",
    "NllLoss2D": "cross entropy",
    "MseLoss": "squared error",
    "mse_loss": "squared error",
}

#: The finding, the effect of each step, and the advice.
_PLUS = {
    "ascended-policy": (
        "the loss is log-probabilities times `{}` without a minus",
        "each step makes rewarded actions rarer",
        "Negate it: the optimizer minimises the loss, and `{}` should grow.",
    ),
    "minimised-overlap": (
        "the loss contains the overlap with the target ({}) with a plus",
        "each step makes it smaller",
        "Minimise 1 minus the overlap.",
    ),
}


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each loss."""
    yield from _turned(loop, limits)
    for number, fact in enumerate(loop.facts_of("inverted-ratio")):
        yield RULE.in_loop(
            loop,
            "",
            f"`{fact.name} = {fact.words[0]}` has the old probability above the new one: each step "
            "makes rewarded actions rarer.",
            advice="Use `exp(new - old)`: the new policy's log-probability first.",
            value=1.0,
            cause=f"ratio {number}" if number else "ratio",
            location=fact.location,
        )
    if len(loop.optimizers) != 1:
        return
    optimizer = loop.optimizers[0]
    for one in operations(loop, "negated", limits["share"]):
        if optimizer.maximizes:
            return
        name = _NAMES.get(one.name, "loss")
        yield RULE.in_loop(
            loop,
            "",
            f"backward starts at the negative of a {name} "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: each step "
            "makes it larger.",
            value=float(one.count),
            limit=limits.of("share"),
            location=of_loss(loop, one),
        )
    losses = [one for one in loop.targets if one.constant is not None]
    if optimizer.maximizes and losses and enough(loop, optimizer.steps):
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"`{optimizer.name}` has maximize=True, and the loss is a {_name(losses[0])}: "
            "each step makes it larger.",
            value=1.0,
            cause="maximize",
            location=optimizer.location,
        )


def _turned(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Find a term that should grow, but has a positive sign in the loss."""
    if any(one.maximizes for one in loop.optimizers):
        return
    share = limits["share"] / max(1, len(loop.optimizers))
    for kind, words in _PLUS.items():
        for one in operations(loop, kind, share):
            what, effect, advice = (part.format(one.name) for part in words)
            yield RULE.in_loop(
                loop,
                "",
                f"{what}, {in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: "
                f"{effect}.",
                advice=advice,
                value=float(one.count),
                limit=limits.of("share"),
                cause=kind,
                location=of_loss(loop, one),
            )


def _name(targets: LossTargets) -> str:
    return _NAMES.get(targets.loss, targets.loss.replace("_", " "))
