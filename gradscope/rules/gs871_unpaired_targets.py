"""GS871: targets that belong to other samples than the outputs."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS871",
    name="unpaired-targets",
    severity="error",
    summary="the targets belong to other samples than the outputs",
    what=(
        "Reads the index that chooses rows of the outputs before a loss. It fires if that is the "
        "same in all losses that were read, and the targets are a slice of as many rows with "
        "another place. The script must also index these targets with a mask or rows: else they "
        "may be stored by split. An index that is not ascending is silent: the targets may be in "
        "its order. "
        "It also fires if the text of a data set's `__getitem__(self, i)` takes "
        "`self.x[i]` and then `self.y[i - 1]`: sample 0 gets the last label."
    ),
    why="The network learns the frequencies of the classes, or the noise of wrong labels.",
    fix="Choose the outputs and the targets by the same index: `loss(out[mask], y[mask])`.",
    sources=(
        "PyTorch Geometric, introduction: nll_loss(out[data.train_mask], data.y[data.train_mask])",
        "Karpathy 2019, A recipe for training neural networks: look at the data, as it enters",
    ),
    thresholds=(
        Threshold(
            "share", 0.95, "share of the losses that were read, above which it fires", CHOSEN
        ),
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS513", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each loss and each data set."""
    for number, one in enumerate(operations(loop, "other-rows", limits["share"])):
        chosen, every = one.shapes
        yield RULE.in_loop(
            loop,
            "",
            f"the loss compares the rows {one.name}, … of the outputs with targets that are a "
            f"slice of {chosen[0]} of {every[0]} rows: the targets of other samples, "
            f"{in_steps(one.count, loop.graphs, 'loss', 'losses')}.",
            value=float(one.count),
            limit=limits.of("share"),
            cause=str(number) if number else None,
            location=of_loss(loop, one),
        )
    for fact in loop.facts_of("shifted-labels"):
        sample, label = fact.words
        yield RULE.in_loop(
            loop,
            "",
            f"`{fact.name}` gives `{label}` with `{sample}`: each sample gets the label of "
            "another, and sample 0 that of the last.",
            advice=f"Take both at the same index, as `{sample}`.",
            cause="data-set",
            location=fact.location,
        )
