"""GS810: a model that is evaluated in train mode."""

from __future__ import annotations

from gradscope.records.loop import LoopEvent, LoopModel, LoopRecord, Round
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS810",
    name="evaluated-in-train-mode",
    severity="warning",
    summary="dropout or batch normalization is in train mode in an evaluation",
    what=(
        "Reads calls without gradients (under `no_grad` or `inference_mode`) between the steps of "
        "a model that trains. It fires if dropout or batch normalization is in train mode in "
        "them. It ignores calls in each step of another model, such as those of a GAN's "
        "generator, and calls that repeat one input, as in Monte Carlo dropout."
    ),
    why=(
        "Batch normalization updates its statistics with the evaluation's data, and normalizes "
        "by its batches; dropout drops activations. The measured results are not those of the "
        "model that you will use."
    ),
    fix="Call `model.eval()` before the evaluation, and `model.train()` after it.",
    sources=(
        "PyTorch, torch.nn.Module.train and eval; autograd mechanics: evaluation mode",
        'Karpathy 2018, most common neural net mistakes: "you forgot to toggle train/eval mode"',
    ),
    thresholds=(
        Threshold(
            "share",
            0.5,
            ("share of steps with such a call, above which it counts as intended"),
            CHOSEN,
        ),
    ),
    runs=Runs(loop=True, end=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model that trains."""
    for model in loop.models:
        if not model.calls:
            continue
        training = [one for one in loop.rounds if _has(one, "call", model)]
        steps = sum(one.count for one in training)
        found = [(one, e) for one in loop.rounds if (e := _evaluation(one.events, model))]
        last = _evaluation(loop.rest, model)
        needed = [one for one in loop.rounds if _in_train_mode(one.events, model)]
        among = sum(one.count for one in needed)
        alone = any(not _has(one, "call", model) for one in needed)
        if among > limits["share"] * steps and alone:
            continue  # another model's steps need it
        event = found[0][1] if found else last
        if event is None or not steps:
            continue
        undone = model.train_at is not None and model.train_at != event.location
        advice = (
            f"The function that evaluates calls `{model.name}.train()` first: call it before the "
            f"training steps alone, and `{model.name}.eval()` before the evaluation."
        )
        yield RULE.in_loop(
            loop,
            model.name,
            f"`{model.name}` is evaluated in train mode: {_which(event)}.",
            advice=advice
            if undone
            else f"Call `{model.name}.eval()` before the evaluation, and `{model.name}.train()` "
            "after it.",
            value=float(among + (last is not None)),
            location=model.train_at or event.location,
            first=found[0][0].first if found else loop.steps,
        )


def _has(one: Round, kind: str, model: LoopModel) -> bool:
    return any(event.kind == kind and event.of == model.name for event in one.events)


def _evaluation(events: tuple[LoopEvent, ...], model: LoopModel) -> LoopEvent | None:
    """Return the first evaluation in train mode; None if an input is repeated."""
    found = _in_train_mode(events, model)
    if any("repeated" in event.facts for event in found):
        return None
    return next(iter(found), None)


def _in_train_mode(events: tuple[LoopEvent, ...], model: LoopModel) -> list[LoopEvent]:
    return [
        event
        for event in events
        if event.kind == "evaluation"
        and event.of == model.name
        and event.facts & {"norm-on", "dropout-on"}
    ]


def _which(event: LoopEvent) -> str:
    if "norm-on" in event.facts:
        also = ", and dropout drops activations" if "dropout-on" in event.facts else ""
        return f"batch normalization updates its statistics with the evaluation's data{also}"
    return "dropout drops activations"
