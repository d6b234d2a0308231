"""GS845: adapters that are frozen as they were made."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_HONEST, Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS845",
    name="frozen-adapters",
    severity="error",
    summary="a low-rank adapter is frozen while its second factor is zero",
    what=(
        "Finds, in a model that trains, two frozen weights of one layer whose product is a "
        "low-rank matrix, if the second weight is zero. Layers with another adapter that trains "
        "do not count."
    ),
    why=(
        "The product is zero: the adapter has no effect, and never trains. Most often a loop "
        "freezes all parameters after the adapters were added."
    ),
    fix=(
        "Freeze the model before adding the adapters, or set `requires_grad_(True)` on their "
        "parameters."
    ),
    sources=(
        "Hu et al. 2021, LoRA: B starts at zero",
        "microsoft/loralib, mark_only_lora_as_trainable",
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    names = {model.id: model.name for model in loop.models}
    for one in loop.adapters:
        name = names.get(one.model, "")
        first, zero = one.names
        yield RULE.in_loop(
            loop,
            zero,
            f"the LoRA-like adapter `{first}`, `{zero}` is frozen, and `{zero}` is exactly 0: "
            f"it adds nothing and never trains. `{name}` has "
            f"{plural(one.pairs, 'such pair')}; `{one.trained}` does train.",
            value=float(one.pairs),
            location=one.location,
            model=name,
        )
