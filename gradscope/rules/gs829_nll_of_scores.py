"""GS829: `nll_loss` of scores, without a log_softmax."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS829",
    name="nll-of-scores",
    severity="error",
    summary="`nll_loss` takes a layer's scores, which are no logarithms of probabilities",
    what=(
        "Reads, from the graph of the loss, what `nll_loss` takes: the output of a linear or a "
        "convolution layer, with no log_softmax between."
    ),
    why=(
        "Nothing bounds the loss: it falls below 0 as the scores of the classes grow, all of them "
        "alike, and the network learns no difference."
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


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for a run."""
    for one in operations(loop, "scores", limits["share"]):
        shape = ", ".join(map(str, one.shapes[0]))
        yield at(
            RULE.finding(
                "",
                f"`nll_loss` takes the scores [{shape}] of a layer "
                f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: it wants "
                "the logarithms of probabilities, as `log_softmax` gives them.",
                advice="Use `cross_entropy` on the scores, or `log_softmax` before `nll_loss`.",
                value=float(one.count),
                threshold=limits["share"],
                location=of_loss(loop, one),
            ),
            loop,
        )
