"""GS804: an optimizer that holds parameters which no running model has."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.loop import LoopOptimizer, LoopParameter, LoopRecord
from gradscope.rules._loop import LoopFindings, concerned, enough, full_names, in_steps, these
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS804",
    name="stale-optimizer",
    severity="error",
    summary="an optimizer holds parameters that belong to no running model",
    what=(
        "Compares the parameters that an optimizer holds with those of the models that the "
        "script calls. It fires if parameters belong to no called model and never get a "
        "gradient; as a warning, if other parameters of the optimizer do and these belong to no "
        "model that was found. It names the running model's parameters that no optimizer holds, "
        "and the module that was set after the optimizer was made."
    ),
    why=(
        "The optimizer moves, or skips, unused tensors, and the layer that runs is never "
        "trained. Most often the head was replaced after the optimizer was made."
    ),
    fix="Make the optimizer after the last change to the model.",
    sources=(
        "PyTorch, torch.optim, constructing it: parameters must live in consistent locations when "
        "optimizers are constructed and used",
        "PyTorch tutorials, transfer learning: the optimizer is made after the head is replaced",
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS401", "GS402", "GS404", "GS603", "GS613"),
)


_INSERT = (
    "Put the modules of these parameters into the model, `setattr(owner, name, module)`; a new "
    "value of a variable changes no model."
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    for optimizer in loop.optimizers:
        if optimizer.trained:  # another one holds its parameters in vain
            continue
        without = [
            one
            for one in loop.parameters
            if optimizer.name in one.optimizers and "no-gradient" in one.facts
        ]
        unheld = [one for one in loop.parameters if "unheld" in one.facts]
        stale = [one for one in without if "orphan" in one.facts]
        trains = [one for one in without if "untrained" not in one.facts]
        idle = len(without) == optimizer.parameters and trains
        if idle and any("graded" in one.facts for one in unheld):
            stale = without  # of a model that runs without gradients, as a teacher does
        if not stale or not enough(loop, optimizer.steps):
            continue
        some = len(stale) != optimizer.parameters and not unheld
        if some:  # of a branch that is never called, or of no model at all
            stale = [one for one in stale if not one.model]
        if not stale:
            continue
        yield RULE.in_loop(
            loop,
            optimizer.name,
            " ".join(
                part
                for part in (
                    _held(optimizer, stale, loop),
                    _instead(unheld, loop),
                    _times(optimizer, every=not some),
                )
                if part
            ),
            severity="warning" if some else None,
            advice=_INSERT if some else _advice(optimizer, loop),
            value=float(len(stale)),
            location=optimizer.set_at or optimizer.location,
            parameters=concerned([*stale, *unheld], loop),
        )


def _held(optimizer: LoopOptimizer, stale: Sequence[LoopParameter], loop: LoopRecord) -> str:
    """Return the sentence on the stale parameters: their owner, and since when."""
    count = plural(len(stale), "parameter")
    owners = {one.model for one in stale if one.model}
    every = len(stale) == optimizer.parameters and len(owners) == 1
    called = any("orphan" not in one.facts for one in stale)
    how = "gets no gradient" if called else "is never called"
    belongs = "belongs" if len(stale) == 1 else "belong"
    nothing = "no model that gets a gradient" if called else "no model that runs"
    of = f"of `{owners.pop()}`, which {how}" if len(owners) == 1 else f"that {belongs} to {nothing}"
    made = f", made at {optimizer.location}," if optimizer.location else ""
    if made and optimizer.set_at:
        made = f", made at {optimizer.location} and set at {optimizer.set_at},"
    after = ""
    for name, line in _set_later(loop)[-1:]:
        after = f"; `{name}` was set after that{f', at {line}' if line else ''}"
    held = "only parameters" if every and len(stale) > 1 else count
    return f"`{optimizer.name}`{made} holds {held} {of}{after}."


def _instead(unheld: Sequence[LoopParameter], loop: LoopRecord) -> str:
    """Return the sentence on the parameters that the optimizer should hold."""
    if not unheld:
        return ""
    names = these(full_names(unheld, loop))
    return f"No optimizer holds {names} of the model that runs."


def _times(optimizer: LoopOptimizer, *, every: bool) -> str:
    if not optimizer.steps:
        return ""
    steps = in_steps(optimizer.steps, optimizer.steps)
    which = f"The parameters of `{optimizer.name}`" if every else "These"
    return f"{which} get no gradient {steps}."


def _advice(optimizer: LoopOptimizer, loop: LoopRecord) -> str:
    changed = [name for name, _ in _set_later(loop)]
    after = f"after `{changed[-1]}` is set" if changed else "after the last change to the model"
    return f"Make `{optimizer.name}` {after}, with the parameters of the model that runs."


def _set_later(loop: LoopRecord) -> list[tuple[str, str | None]]:
    """Return the modules that were set after the optimizer was made, with their lines."""
    several = len(loop.models) > 1
    return [
        (f"{model.name}.{name}".rstrip(".") if several or not name else name, line)
        for model in loop.models
        for name, line in model.replaced
    ]
