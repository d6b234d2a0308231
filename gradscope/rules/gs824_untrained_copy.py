"""GS824: a model is evaluated whose copy is trained in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.loop import LoopEvent, LoopModel, LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import plural

RULE = Rule(
    code="GS824",
    name="untrained-copy",
    severity="warning",
    summary="a model is evaluated, and a copy of it is trained in its place",
    what=(
        "Compares the models of a script that have the same class and shapes. It fires where one "
        "is called only without gradients, after the training began and in few of its steps, and "
        "keeps its weights, none of them frozen, while another one is trained and never evaluated. "
        "A target network, an average of weights, a teacher and a reference policy do not count: "
        "they change, are frozen, or are called at each step."
    ),
    why=(
        "The figures of the evaluation are those of the first weights: they never change, however "
        "well the copy learns."
    ),
    fix="Evaluate the model that is trained, or load its weights into the other before.",
    sources=(
        "PyTorch tutorials, what is a state_dict: copies of a model share no parameters",
        "Python, copy: a deep copy shares nothing with the original",
    ),
    thresholds=(
        Threshold("evaluations", 2, "calls of it, below which nothing is said", CHOSEN),
        Threshold("share", 0.5, "share of the steps with one, above which nothing is said", CHOSEN),
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each model that is evaluated in the place of another."""
    models = {model.name: model for model in loop.models}
    for model in loop.models:
        trained = [models[name] for name in model.twins if name in models]
        trained = [one for one in trained if one.calls and one.held and not one.evaluations]
        if not trained or not _is_left(model) or model.evaluations < limits["evaluations"]:
            continue
        # Before the first step, as to store what it says, it may be evaluated.
        rounds = [one for one in loop.rounds if one.last > 1 and _of(model, one.events)]
        evaluated = [e for one in rounds for e in _of(model, one.events)] + _of(model, loop.rest)
        during = sum(one.count for one in rounds)
        if not evaluated or during > limits["share"] * loop.steps:
            continue
        copy = trained[0]
        yield at(
            RULE.finding(
                model.name,
                f"`{model.name}` is evaluated {plural(model.evaluations, 'time')} and never "
                f"changes; `{copy.name}`, of the same class and shapes, is trained "
                f"({plural(copy.calls, 'call')} with gradients) and never evaluated.",
                advice=f"Evaluate `{copy.name}`.",
                value=float(model.evaluations),
                limit=limits.of("evaluations"),
                location=evaluated[0].location,
            ),
            loop,
            model=model.name,
        )


def _is_left(model: LoopModel) -> bool:
    """Whether nobody trains it, updates it, or has frozen it."""
    whole = model.trainable == model.parameters > 0
    return model.unchanged and not model.calls and not model.held and whole


def _of(model: LoopModel, events: Iterable[LoopEvent]) -> list[LoopEvent]:
    """The evaluations of a model among events."""
    return [event for event in events if event.kind == "evaluation" and event.of == model.name]
