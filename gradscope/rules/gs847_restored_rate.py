"""GS847: a learning rate that a checkpoint brought back."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, held_by
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS847",
    name="restored-rate",
    severity="warning",
    summary="an optimizer's `load_state_dict` restored a far smaller learning rate",
    what=(
        "Compares the learning rate of an optimizer before and after its `load_state_dict`. It "
        "fires if the loaded rate is a small part of the rate that the optimizer was made with, "
        "and later steps never raise it."
    ),
    why=(
        "An optimizer's state contains its learning rate. After a finished schedule that is "
        "nearly 0, and the new run hardly moves."
    ),
    fix=(
        "Set the rate again after loading: `for group in optimizer.param_groups: group['lr'] "
        "= lr`. Or load the scheduler too, if the run goes on."
    ),
    sources=(
        "PyTorch, torch.optim.Optimizer.load_state_dict: param_groups are loaded too",
        "PyTorch forum: loading the optimizer overrides the new learning rate",
    ),
    thresholds=(
        Threshold(
            "share", 0.01, "loaded rate divided by the one before, below which it fires", CHOSEN
        ),
        Threshold("steps", 5, "steps needed to judge", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS603", "GS605", "GS608", "GS612"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for one in loop.optimizers:
        before, after = one.restored or (0.0, 0.0)
        if not before or after >= limits["share"] * before or one.steps < limits["steps"]:
            continue
        if max(one.rate, one.peak) >= limits["share"] * before:
            continue
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}.load_state_dict` replaced the learning rate {before:g} by the saved "
            f"one, {after:g}, and {plural(one.steps, 'step')} were made with it.",
            advice=f"Set it again after loading: `for group in {one.name}.param_groups: "
            "group['lr'] = lr`.",
            value=after / before,
            limit=limits.of("share"),
            location=one.loaded_at,
            parameters=held_by(one, loop),
        )
