"""GS863: a bootstrapped target, or an old policy, that gradients flow through."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS863",
    name="target-with-gradient",
    severity="warning",
    summary="a gradient flows through a Q target, an old policy or an advantage",
    what=(
        "Finds, in the graph of the loss, a distance between two values that both have a "
        "gradient, one of them a constant plus a multiple of a maximum, as `reward + gamma * "
        "q(next).max(1).values`. A target under `no_grad`, or detached, is silent. Also finds a "
        "ratio of probabilities that is exactly 1, though both of its sides have a gradient, and a "
        "log-probability of chosen actions times a constant minus a critic's output."
    ),
    why=(
        "The loss can fall by moving the target towards the prediction. Learned values are "
        "wrong or diverge. In the ratio of a policy to itself, the two gradients cancel. With an "
        "attached advantage, the actor's loss trains the critic to make advantages large."
    ),
    fix=("Compute the target under `torch.no_grad()`, or detach it; a target network helps too."),
    sources=(
        "PyTorch tutorials, reinforcement learning (DQN): expected values under no_grad",
        "Sutton and Barto, Reinforcement learning, 9.3: semi-gradient methods ignore the target",
    ),
    thresholds=(Threshold("share", 0.9, "share of the losses read, above which it fires", CHOSEN),),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS103", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each loss."""
    for one in operations(loop, "bootstrapped", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            "the target of the loss has a gradient: it is a constant plus a multiple of a "
            "network's maximum, and is not detached, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read.",
            value=float(one.count),
            limit=limits.of("share"),
            location=of_loss(loop, one),
        )
    for one in operations(loop, "attached-ratio", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            "the ratio `exp(new - old)` is exactly 1, and both log-probabilities have a "
            f"gradient, {in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: "
            "the two gradients cancel, and the policy does not learn.",
            advice="Keep the old log-probability from the rollout, under `torch.no_grad()` or "
            "detached.",
            value=float(one.count),
            limit=limits.of("share"),
            cause="ratio",
            location=of_loss(loop, one),
        )
    for one in operations(loop, "attached-advantage", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            "the advantage has a gradient: the log-probability is multiplied by a constant minus "
            "the critic's output, which is not detached, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read.",
            advice="Detach it: `log_prob * advantage.detach()`.",
            value=float(one.count),
            limit=limits.of("share"),
            cause="advantage",
            location=of_loss(loop, one),
        )
