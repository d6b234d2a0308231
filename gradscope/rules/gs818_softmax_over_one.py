"""GS818: a softmax over an axis of size one, which is 1 whatever the network computes."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS818",
    name="softmax-over-one",
    severity="error",
    summary="a softmax over an axis of size one always gives 1",
    what=(
        "Reads the graph of the loss in the sampled steps, from the loss towards the models. It "
        "fires at a softmax or log-softmax over an axis of size one, such as a cross entropy of "
        "one output. It is silent if other terms of the loss depend on the network: a detector of "
        "one class has such a term on purpose."
    ),
    why=(
        "The softmax of one number is 1, its logarithm 0. The loss does not depend on the network, "
        "and every gradient is exactly 0."
    ),
    fix=(
        "For two classes use one output with `binary_cross_entropy_with_logits`, or two outputs "
        "with `cross_entropy`; else give softmax the axis of the classes."
    ),
    sources=(
        "ultralytics/yolov3#191: one class, and the loss is always 0, as softmax of N x 1 is 1",
        "huggingface/transformers#7726: do not softmax when num_labels is 1",
    ),
    thresholds=(Threshold("share", 0.2, "share of the losses read, above which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS103", "GS513", "GS613", "GS821"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each operation."""
    for one in operations(loop, "single-softmax", limits["share"]):
        if not one.alone:
            continue
        shape = ", ".join(map(str, one.shapes[0]))
        yield RULE.in_loop(
            loop,
            "",
            f"`{one.name}` runs over an axis of size 1 of [{shape}], "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')} that were read: no gradient "
            "reaches the network.",
            value=float(one.count),
            threshold=limits["share"],
            cause=one.name,
            location=of_loss(loop, one),
        )
