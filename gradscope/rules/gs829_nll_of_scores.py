"""GS829: `nll_loss` of scores, without a log_softmax."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS829",
    name="nll-of-scores",
    severity="error",
    summary="`nll_loss` or `ctc_loss` gets other numbers than log-probabilities",
    what=(
        "Reads the input of `nll_loss` in the graph of the loss. It fires if that is the output "
        "of a linear or convolution layer, without a log_softmax in between. It also fires if the "
        "numbers that `ctc_loss` gets are nowhere the logarithms of probabilities that sum to 1."
    ),
    why=(
        "The loss has no lower bound: it falls below 0 as the scores of all classes grow alike, "
        "and the network does not learn to tell them apart."
    ),
    fix="Use `cross_entropy` on the scores, or put a `log_softmax` before `nll_loss`.",
    sources=(
        "PyTorch, torch.nn.NLLLoss: the input contains log-probabilities of each class",
        "discuss.pytorch.org 15605: negative loss with NLLLoss",
    ),
    thresholds=(Threshold("share", 0.2, "share of the losses read, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS601", "GS602", "GS603", "GS613", "GS604"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for a run."""
    for one in operations(loop, "scores", limits["share"]):
        shape = ", ".join(map(str, one.shapes[0]))
        aligned = one.name == "ctc_loss"
        what = f"numbers [{shape}]" if aligned else f"the raw scores [{shape}] of a layer"
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` gets {what} "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: it takes "
            "log-probabilities, the output of `log_softmax`.",
            advice="Put a `log_softmax` over the classes before `ctc_loss`."
            if aligned
            else "Use `cross_entropy` on the scores, or `log_softmax` before `nll_loss`.",
            value=float(one.count),
            threshold=limits["share"],
            location=of_loss(loop, one),
        )
