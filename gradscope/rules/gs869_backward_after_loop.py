"""GS869: a loop over batches that drops all losses but its last."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS869",
    name="backward-after-loop",
    severity="warning",
    summary="backward comes after the loop over batches, so only its last loss counts",
    what=(
        "Reads the text of the script, and counts the model's calls. It fires if a loop assigns "
        "the loss anew for each batch, `backward` on it comes after the loop, and a model is "
        "called several times in each step; or if the loss is set to 0 before the loop, as a "
        "sum is. A loop that carries a value from one iteration to "
        "the next, as a recurrent network does, is silent."
    ),
    why=(
        "The losses of all other batches are computed and dropped: the model takes one step in "
        "each epoch, and learns from its last batch only. Most often the lines have lost their "
        "indentation."
    ),
    fix="Indent `backward` and `step` into the loop, or sum the losses before backward.",
    sources=(
        "PyTorch tutorials, training with PyTorch: backward and step for each batch",
        "PyTorch forum: loss.backward() outside of the batch loop",
    ),
    calibration=SILENT_ON_TWINS,
    thresholds=(Threshold("calls", 2, "the fewest calls in a step that count as a loop", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS401", "GS603", "GS612", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield at most one finding."""
    if not loop.ended or len(loop.optimizers) != 1 or not enough(loop, loop.steps):
        return
    for one in loop.facts_of("last-loss"):
        if "sum" in one.words:
            yield RULE.in_loop(
                loop,
                loop.optimizers[0].name,
                f"`{one.name}` is set to 0 before a loop, and each iteration assigns it anew: "
                f"`backward` gets the last one alone, {in_steps(loop.steps, loop.steps)}.",
                advice=f"Sum the losses: `{one.name} = {one.name} + …`.",
                value=1.0,
                cause="sum",
                location=one.location,
            )
            return
    calls = max((one.calls for one in loop.models), default=0) / max(1, loop.steps)
    for one in loop.facts_of("last-loss"):
        if calls >= limits["calls"]:
            yield RULE.in_loop(
                loop,
                loop.optimizers[0].name,
                f"`backward` on `{one.name}` comes after the loop over batches: the model is "
                f"called {calls:.0f} times in a step, and only the loss of the last batch "
                f"counts, {in_steps(loop.steps, loop.steps)}.",
                value=calls,
                limit=limits.of("calls"),
                location=one.location,
            )
            return
