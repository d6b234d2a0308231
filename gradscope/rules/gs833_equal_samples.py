"""GS833: batches of samples that are all the same."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LoopBatches
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import LoopFindings, in_steps
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS833",
    name="equal-samples",
    severity="warning",
    summary="all samples of a batch are the same",
    what=(
        "Compares the samples of each model input in the sampled steps. It fires if all samples "
        "of every batch were equal, in each tensor of the input. Models with inputs that have no "
        "sample axis, such as the edges of a graph, do not count. It also fires if two inputs have "
        "the same numbers in every batch, and a gradient is exactly zero: pairs of one sample."
    ),
    why=(
        "The network cannot tell one sample from another, and learns one answer for all. Most "
        "often a dataset ignores its index, or a constant replaces the data."
    ),
    fix="Print two samples of a batch: look at `__getitem__`, its index, and the transforms.",
    sources=(
        "Karpathy 2019, A recipe for training neural networks: visualize just before the net",
        "PyTorch forum: DataLoader returns the same sample for the full batch",
    ),
    thresholds=(
        Threshold("batches", 5, "batches of 4 samples needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS513", "GS603", "GS613", "GS814"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    no_gradient = any("zero-gradient" in one.facts for one in loop.parameters)
    for one in loop.batches:
        if no_gradient and one.twins >= max(one.batches, limits["batches"]):
            yield _pairs(loop, one)
        if one.alike < max(one.batches, limits["batches"]):
            continue
        read = in_steps(one.alike, one.batches, "batch that was read", "batches that were read")
        name = next((model.name for model in loop.models if model.id == one.model), None)
        yield RULE.in_loop(
            loop,
            name or "",
            f"all samples of a batch are the same {read}: the input does not tell one sample "
            "from another.",
            value=float(one.alike),
            limit=limits.of("batches"),
            location=one.location,
            model=name,
        )


def _pairs(loop: LoopRecord, one: LoopBatches) -> TrainingFinding:
    """Yield the finding on two equal inputs, such as both sides of pairs."""
    name = next((model.name for model in loop.models if model.id == one.model), None)
    read = in_steps(one.twins, one.batches, "batch that was read", "batches that were read")
    return RULE.in_loop(
        loop,
        name or "",
        f"two inputs of the model have the same numbers {read}, and parameters get a gradient "
        "of exactly zero: each sample is compared with itself.",
        advice="Print both inputs of a pair: the data set returns one sample twice.",
        value=float(one.twins),
        cause="pairs",
        location=one.location,
        model=name,
    )
