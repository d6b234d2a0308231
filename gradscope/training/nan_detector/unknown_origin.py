"""What is said of a NaN or an infinity whose origin was not found."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.explain.non_finite.levels import KINDS, NAN
from gradscope.records.answers import NonFiniteOrigin
from gradscope.training.nan_detector.recorded_calls import RecordedCall

_ADVICE = "`gradscope run --deep STEP SCRIPT` watches every operation of that step, the loss's too"

_ADVICE_FOR_MANY = (
    "run it again with `--every 1`: of a step that is looked at, the first module is named whose "
    "numbers are not finite"
)


def given(worst: int) -> NonFiniteOrigin:
    """The script itself gave backward a gradient that is not finite."""
    return NonFiniteOrigin(
        kind=KINDS[worst],
        phase="input",
        message=f"the gradient that backward was given holds {_text(worst)}.",
        advice="look at what is passed to `backward`",
    )


def unlocated(where: str, worst: int, calls: Sequence[RecordedCall]) -> NonFiniteOrigin:
    """The step was run again, as far as that goes, and nothing was found."""
    if where == "loss":
        held, phase = f"the loss is {_text(worst)}", "loss"
        seen = _seen(calls, "the models' forward")
        if calls and all(call.level == 0 for call in calls):
            seen = "what the models returned was finite"
        seen += ", and what the loss did with it cannot be read off its graph" if seen else ""
    else:
        held, phase = "gradients are not finite, the loss is", "backward"
        arrived = [call for call in calls if call.arrived]
        if arrived and not any(call.given_finite for call in arrived):
            seen = "what the loss sent to the models was not finite already, and its graph is gone"
        else:
            seen = _seen(calls, "the backward of the models")
    known = [held, *filter(None, [seen]), *_doubts(calls)]
    alone = all(call.repeatable for call in calls)
    return NonFiniteOrigin(
        kind=KINDS[worst],
        phase=phase,
        message="; ".join(known) + ".",
        advice=_ADVICE if alone else _ADVICE_FOR_MANY,
    )


def _seen(calls: Sequence[RecordedCall], what: str) -> str:
    """What running the calls again has shown; nothing where none could be."""
    if calls and not any(call.repeats for call in calls):
        return ""
    return f"{what}, run again, made only finite numbers of finite ones"


def _doubts(calls: Sequence[RecordedCall]) -> list[str]:
    """What was not the same when it ran again."""
    found = []
    for name in dict.fromkeys(call.name for call in calls if call.overwritten):
        found.append(f"the inputs of `{name}` were overwritten before it could be run again")
    for name in dict.fromkeys(call.name for call in calls if call.moved):
        found.append(f"the weights of `{name}` had moved before it could be run again")
    for name in dict.fromkeys(call.name for call in calls if call.drew):
        found.append(f"`{name}` draws random numbers, which it did not in its first steps")
    for name in dict.fromkeys(call.name for call in calls if not call.repeatable):
        found.append(f"`{name}` waits for other processes, and cannot be run again in one of them")
    return found


def _text(worst: int) -> str:
    return "NaN" if worst == NAN else "infinite"
