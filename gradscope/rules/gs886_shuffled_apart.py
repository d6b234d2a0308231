"""GS886: data and labels that are shuffled separately."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS886",
    name="shuffled-apart",
    severity="warning",
    summary="data and labels are shuffled separately, in different orders",
    what=(
        "Reads the script's text. It fires if one call gives two arrays, as `x, y = load()`, one "
        "of them is named as labels, and a block shuffles one after the other without a common "
        "seed. It also fires for two data loaders of a `zip` that shuffle, if their batches have "
        "other indices, and the second goes into nothing but the loss. GS613 judges other arrays "
        "that are shuffled separately, by the loss."
    ),
    why=(
        "A label then belongs to another sample. The network can only memorize: the training loss "
        "may fall, and the evaluation is at chance."
    ),
    fix=(
        "Shuffle all arrays in one call, or index them with one permutation. Give one data loader "
        "both, in a `TensorDataset`."
    ),
    sources=(
        "scikit-learn, utils.shuffle: shuffle arrays in a consistent way",
        "Stack Overflow: shuffle two NumPy arrays in unison",
    ),
    runs=Runs(loop=True, end=True),
    explains=("GS613",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for the first pair."""
    for one in loop.facts_of("shuffled-apart"):
        if one.words[1:]:
            yield RULE.in_loop(
                loop,
                "",
                f"`{one.words[0]}` and `{one.name}` are shuffled separately: the labels do not "
                "belong to the samples.",
                value=1.0,
                location=one.location,
            )
            return
