"""GS824: an evaluated model never trains, because a copy of it is trained."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gradscope.records.loop import LoopEvent, LoopModel, LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS824",
    name="untrained-copy",
    severity="warning",
    summary="the evaluated model never trains: a copy of it is trained instead",
    what=(
        "Compares the script's models of the same class and shapes. It fires if one is evaluated "
        "and the other trained. The evaluated one is called only without gradients, after the "
        "training began and in few of its steps; it is not frozen, and its weights never change. "
        "The trained one is never evaluated. A target network, an average of weights, a teacher "
        "and a reference policy do not count: they change, are frozen, or are called at each "
        "step."
    ),
    why=(
        "The evaluation measures the initial weights: its results never change, however well the "
        "copy learns."
    ),
    fix="Evaluate the model that is trained, or first load its weights into the other.",
    sources=(
        "PyTorch tutorials, what is a state_dict: copies of a model share no parameters",
        "Python, copy: a deep copy shares nothing with the original",
    ),
    thresholds=(
        Threshold("evaluations", 2, "evaluations needed to judge", CHOSEN),
        Threshold(
            "share", 0.5, "share of the steps with one, above which it does not judge", CHOSEN
        ),
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for models that are evaluated in place of their copies."""
    models = {model.id: model for model in loop.models}
    done: set[int] = set()
    for model in loop.models:
        alike = [model, *(models[number] for number in model.twins)]
        left = [one for one in alike if _is_left(one) and one.evaluations]
        trained = [one for one in alike if one.calls and one.held]
        count = sum(one.evaluations for one in left)
        if model.id in done or model not in left or count < limits["evaluations"]:
            continue
        done.update(one.id for one in left)
        if not trained or any(one.evaluations for one in trained):
            continue
        # A model that is also evaluated before the first step is a reference for the training.
        names = {one.name for one in left}
        rounds = [one for one in loop.rounds if _of(names, one.events)]
        if any(one.first == 1 for one in rounds):
            continue
        evaluated = [e for one in rounds for e in _of(names, one.events)] + _of(names, loop.rest)
        during = sum(one.count for one in rounds)
        if not evaluated or during > limits["share"] * loop.steps:
            continue
        copy = trained[0]
        made = f", made at {copy.made}" if copy.made and copy.name != model.name else ""
        yield RULE.in_loop(
            loop,
            model.name,
            f"`{model.name}` is evaluated {plural(count, 'time')} and never changes; "
            f"{_named(copy, model)}, of the same class and shapes{made}, is trained "
            f"({plural(copy.calls, 'call')} with gradients) and never evaluated.",
            advice=f"Evaluate {_named(copy, model)}: return it from the function that trains.",
            value=float(count),
            limit=limits.of("evaluations"),
            location=copy.lost_at or evaluated[0].location,
            model=model.name,
        )


def _named(copy: LoopModel, model: LoopModel) -> str:
    """Return the name of the trained model, which a function may call by the same name as the
    script's."""
    return f"`{copy.name}`" if copy.name != model.name else f"another `{copy.kind}`"


def _is_left(model: LoopModel) -> bool:
    """Return True if the copy is trainable, and is neither trained, updated nor frozen."""
    full = model.trainable == model.parameters > 0
    return model.unchanged and not model.calls and not model.held and full


def _of(models: Collection[str], events: Iterable[LoopEvent]) -> list[LoopEvent]:
    """Return the evaluations of models among events."""
    return [event for event in events if event.kind == "evaluation" and event.of in models]
