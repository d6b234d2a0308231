"""GS511: units that start alike, and so stay alike."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import EqualUnits
from gradscope.rules._loop import LoopFindings, these
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
        "LoRA or in a residual branch, do not count: their gradients differ between units. It "
        "also fires if two or more weights stay zero because their gradients are exactly zero, or, "
        "without a torch.nn.Module, if two or more are zero in every loss graph that was read."
    ),
    why=(
        "Units with equal weights compute the same number and get the same gradient: the "
        "symmetry never breaks, and a layer of 512 units is worth one. If two layers in a row are "
        "zero, each multiplies the other's gradient by zero, and neither ever moves."
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
    explains=("GS101", "GS103", "GS513", "GS603", "GS605", "GS613"),
)  # fmt: skip

#: A single weight of zeros gets a gradient from the layers around it.
_PAIR = 2


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    models: dict[int, list[EqualUnits]] = {}
    for one in loop.equal_units:
        if one.readings >= limits["samples"] and one.units:
            models.setdefault(one.model, []).append(one)
    for number, members in models.items():
        name = next((one.name for one in loop.models if one.id == number), None)
        first, names = members[0], [one.name for one in members]
        more = f"; so are those of {these(names[1:])}" if names[1:] else ""
        yield RULE.in_loop(
            loop,
            first.name,
            f"all {plural(first.units, 'row')} of `{first.name}` are equal in all "
            f"{plural(first.readings, 'sample')}, though they move{more}: all units of a layer "
            "compute the same number, because their weights started from the same value.",
            value=float(first.readings),
            limit=limits.of("samples"),
            location=next((one.location for one in members if one.location), None),
            model=name,
            parameters=tuple((number, one) for one in names),
        )
    yield from _stuck_at_zero(loop, limits)
    yield from _without_modules(loop, limits)


def _stuck_at_zero(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model with two weights that stay zero, with a gradient of zero."""
    still = {
        (one.model, one.name): one
        for one in loop.parameters
        if "zero-gradient" in one.facts and not one.facts & {"untrained", "orphan"}
    }
    for model in loop.models:
        members = [
            one
            for one in loop.equal_units
            if one.model == model.id
            and not one.units
            and one.readings >= limits["samples"]
            and (model.name, one.name) in still
        ]
        if len(members) < _PAIR:
            continue
        names = [one.name for one in members]
        weights = {n for (of, n), one in still.items() if of == model.name and len(one.shape) > 1}
        alone = weights == set(names)  # then every zero in the model follows from it
        yield RULE.in_loop(
            loop,
            names[0],
            f"{these(names)} are all zero in all {plural(members[0].readings, 'sample')}, and "
            "their gradients are exactly zero: each weight multiplies the others' gradients by "
            "zero, so none of them ever moves.",
            value=float(len(members)),
            cause="zero-weights",
            location=next((one.location for one in members if one.location), None),
            model=model.name,
            parameters=None if alone else tuple((model.id, one) for one in names),
        )


def _without_modules(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for the weights of a network without modules that stay zero."""
    # The input's nearest first.
    facts = reversed(list(loop.facts_of("zero-weight")))
    zero = [one for one in facts if one.count >= limits["samples"]]
    if len(zero) >= _PAIR:
        names = [one.name for one in zero]
        yield RULE.in_loop(
            loop,
            "",
            f"{these(names)} are all zero in all {plural(zero[0].count, 'graph')} that were read: "
            "each weight multiplies the others' gradients by zero, so none of them ever moves.",
            value=float(len(zero)),
            cause="zero-weights",
            location=next((one.location for one in zero if one.location), None),
        )
