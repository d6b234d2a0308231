"""GS809: a model that trains in eval mode."""

from __future__ import annotations

from gradscope.records.loop import LoopEvent, LoopModel, LoopRecord, Round
from gradscope.records.report import Finding
from gradscope.rules._loop import STEPS, LoopFindings, at, in_steps
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS809",
    name="trained-in-eval-mode",
    severity="warning",
    summary="dropout or batch normalization is off in training steps",
    what=(
        "Reads the mode of each model in every call with gradients. It fires if a model with "
        "dropout or batch normalization that is not frozen is in eval mode in every step, or in "
        "every step since an evaluation. It also fires if a part of a model in train mode is in "
        "eval mode in every step, while its parameters train, and its batch normalization has "
        "never read a batch."
    ),
    why=(
        "Dropout does not regularize, and batch normalization uses running statistics that no "
        "longer follow the weights."
    ),
    fix="Call `model.train()` before the training steps, and again after each evaluation.",
    sources=(
        "PyTorch, torch.nn.Module.train and eval",
        'Karpathy 2018, most common neural net mistakes: "you forgot to toggle train/eval mode"',
    ),
    runs=Runs(loop=True),
    explains_as=(
        ("batch-norm", ("GS101", "GS102", "GS104", "GS203", "GS610")),
        (
            "part",
            (
                *("GS101", "GS102", "GS104", "GS201", "GS203"),
                *("GS603", "GS605", "GS610", "GS612", "GS613"),
            ),
        ),
    ),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model, or for a part of one."""
    yield from _parts(loop)
    for model in loop.models:
        off: list[tuple[Round, LoopEvent]] = []
        others: list[tuple[Round, LoopEvent]] = []
        for one in loop.rounds:
            calls = [e for e in one.events if e.kind == "call" and e.of == model.name]
            if calls:
                bad = all(e.facts & {"norm-off", "dropout-off"} for e in calls)
                (off if bad else others).append((one, calls[0]))
        count = sum(one.count for one, _ in off)
        if count < (2 if loop.ended else STEPS):
            continue
        first = min(one.first for one, _ in off)
        if any(one.last > first for one, _ in others):
            continue  # it comes and goes
        yield at(_finding(model, off[0][1], count, first, loop), loop, first)


def _finding(
    model: LoopModel, event: LoopEvent, count: int, first: int, loop: LoopRecord
) -> Finding:
    off = {
        "dropout-off": "dropout is off",
        "norm-off": "batch normalization uses its running statistics",
    }
    which = ", and ".join(words for fact, words in off.items() if fact in event.facts)
    since = f"since step {first:,}" if first > 1 else in_steps(count, count)
    return RULE.finding(
        model.name,
        f"`{model.name}` trains in eval mode {since}: {which}.",
        advice=(
            f"Call `{model.name}.train()` before the training steps, and again after each "
            "evaluation."
        ),
        value=float(count),
        cause="batch-norm" if "norm-off" in event.facts else None,
        location=model.eval_at or event.location,
    )


def _parts(loop: LoopRecord) -> LoopFindings:
    """Yield one finding for each part in eval mode of a model in train mode."""
    for part in loop.facts_of("eval-part"):
        steps = next((one.steps for one in loop.models if one.name == part.model), 0)
        if steps < (2 if loop.ended else STEPS):
            continue
        yield RULE.in_loop(
            loop,
            part.name,
            f"`{part.name}` trains in eval mode {in_steps(steps, steps)}, though `{part.model}` is "
            "in train mode: batch normalization uses its initial running statistics, which do not "
            "normalize.",
            advice=f"Call `{part.model}.train()`, or that of the part, before the training steps.",
            value=float(steps),
            cause="part",
            location=part.location,
            model=part.model,
        )
