"""GS843: a gradient penalty without create_graph."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS843",
    name="penalty-without-graph",
    severity="error",
    summary="a gradient penalty has no graph: it trains nothing",
    what=(
        "Notes calls of `torch.autograd.grad` without `create_graph` for tensors other than "
        "parameters. It fires if a term of the loss is a constant, and the script computes that "
        "term from such gradients. Inputs made of gradients, such as adversarial ones, do not "
        "count."
    ),
    why=(
        "The penalty changes the printed loss, but has no gradient. A critic that it should "
        "limit grows without bound."
    ),
    fix=("Call `torch.autograd.grad(…, create_graph=True)`."),
    sources=(
        "Gulrajani et al. 2017, Improved training of Wasserstein GANs",
        "PyTorch, torch.autograd.grad: create_graph",
    ),
    thresholds=(
        Threshold("share", 0.2, "share of the losses that were read, above which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each term."""
    for one in operations(loop, "penalty", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` is made of gradients that `autograd.grad` gave without "
            "`create_graph=True`: the penalty is a constant "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read, and has no "
            "gradient.",
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=one.location,
        )
