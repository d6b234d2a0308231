"""GS511: units that start alike, and so stay alike."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_data import EqualUnits
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, these
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS511",
    name="equal-units",
    severity="error",
    summary="all units of a layer have the same weights, and stay the same",
    what=(
        "Compares the rows of each trainable weight in the sampled steps. It fires if all rows "
        "were equal in every sample, though the optimizer moves them. Weights of zeros, as in "
        "LoRA or in a residual branch, do not count: their gradients differ between units."
    ),
    why=(
        "Units with equal weights compute the same number and get the same gradient: the "
        "symmetry never breaks, and a layer of 512 units is worth one."
    ),
    fix=(
        "Start from random weights: leave PyTorch's own initialisation, or use "
        "`nn.init.kaiming_normal_` or `nn.init.xavier_uniform_`."
    ),
    sources=(
        "Goodfellow et al. 2016, Deep learning, 8.4: initial parameters must break symmetry",
        "CS231n notes, weight initialization: pitfall, all zero initialization",
    ),
    thresholds=(
        Threshold("samples", 3, "samples needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS101", "GS603", "GS605", "GS613"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield one finding for each model."""
    models: dict[int, list[EqualUnits]] = {}
    for one in loop.equal_units:
        if one.readings >= limits["samples"]:
            models.setdefault(one.model, []).append(one)
    for number, members in models.items():
        name = next((one.name for one in loop.models if one.id == number), None)
        first, names = members[0], [one.name for one in members]
        more = f"; so are those of {these(names[1:])}" if names[1:] else ""
        yield at(
            RULE.finding(
                first.name,
                f"all {plural(first.units, 'row')} of `{first.name}` are equal in all "
                f"{plural(first.readings, 'sample')}, though they move{more}: all units of a layer "
                "compute the same number, because their weights started from the same value.",
                value=float(first.readings),
                limit=limits.of("samples"),
                location=next((one.location for one in members if one.location), None),
            ),
            loop,
            model=name,
            parameters=tuple((number, one) for one in names),
        )
