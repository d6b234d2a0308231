"""GS875: ReduceLROnPlateau waits for a figure to fall that should rise."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS875",
    name="reverse-plateau",
    severity="warning",
    summary="a plateau scheduler gets an accuracy with mode='min', or a loss with 'max'",
    what=(
        "Reads the scheduler's mode, and in the script's text the name of the figure that "
        "`step` gets, as `val_acc` or `val_loss`. It fires if the mode is the opposite of the "
        "name, and the rate has fallen to a tenth or less."
    ),
    why=(
        "Each evaluation that is better than the ones before counts as a bad one: the learning "
        "rate falls while the model still learns, until nothing moves."
    ),
    fix="Pass `mode='max'` for an accuracy, or give the scheduler the loss.",
    sources=(
        "PyTorch, torch.optim.lr_scheduler.ReduceLROnPlateau: mode",
        "PyTorch forum: ReduceLROnPlateau with accuracy, mode='max'",
    ),
    calibration=SILENT_ON_TWINS,
    thresholds=(Threshold("rate", 0.1, "share of the highest rate, up to which it fires", CHOSEN),),
    runs=Runs(loop=True),
    explains=("GS603", "GS605", "GS608", "GS612", "GS811"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each scheduler."""
    for one in loop.facts_of("reverse-plateau"):
        figure, mode = one.words
        of = next((it.optimizer for it in loop.schedulers if it.name == one.name), None)
        optimizer = next((it for it in loop.optimizers if it.name == of), None)
        if optimizer is None or optimizer.rate > limits["rate"] * optimizer.peak * (1 + 1e-9):
            continue
        other = "max" if mode == "min" else "min"
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}` has mode='{mode}' and gets `{figure}`: an evaluation that is better "
            f"than the ones before counts as a bad one. The learning rate has fallen from "
            f"{optimizer.peak:.3g} to {optimizer.rate:.3g}, in {plural(one.count, 'step')} of "
            "the scheduler.",
            advice=f"Make it with `mode='{other}'`.",
            value=optimizer.rate / (optimizer.peak or 1.0),
            limit=limits.of("rate"),
            location=one.location,
        )
