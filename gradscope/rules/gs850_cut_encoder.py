"""GS850: an encoder that a quantizer cuts off."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS850",
    name="cut-encoder",
    severity="warning",
    summary="the reconstruction sends no gradient to the encoder before a quantizer",
    what=(
        "Finds, in the graph of the loss, the two distances between an encoder's output and its "
        "codes, each with one side detached. It fires if no other term of the loss depends on "
        "the encoder."
    ),
    why=(
        "The choice of a code has no derivative. The encoder moves towards its codes, not "
        "towards a better reconstruction, and the codes collapse."
    ),
    fix=("Pass the gradient straight through: `codes = z + (codes - z).detach()`."),
    sources=(
        "van den Oord et al. 2017, Neural discrete representation learning, 3.2: straight-through",
        "Bengio et al. 2013, Estimating or propagating gradients through stochastic neurons",
    ),
    thresholds=(
        Threshold("share", 0.9, "share of the losses that were read, above which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding."""
    for one in operations(loop, "cut-encoder", limits["share"]):
        yield RULE.in_loop(
            loop,
            "",
            "no gradient of the reconstruction reaches the encoder: the decoder gets the codes "
            "themselves, without the straight-through estimator, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read. Only the "
            "commitment term trains the encoder.",
            value=float(one.count),
            threshold=limits["share"],
            location=of_loss(loop, one),
        )
