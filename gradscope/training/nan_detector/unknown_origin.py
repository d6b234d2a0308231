"""The message on a NaN or Inf whose origin was not found."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.explain.non_finite.reasons import KINDS, NAN
from gradscope.records.answers import NonFiniteOrigin
from gradscope.training.nan_detector.recorded_calls import RecordedCall

DEEP_ADVICE = (
    "`gradscope run --deep STEP SCRIPT` traces every operation of that step, with the loss"
)

_ADVICE_FOR_MANY = (
    "run it again with `--every 1`: in a sampled step, the first module with a NaN or Inf is named"
)


def given(worst: int) -> NonFiniteOrigin:
    """Return the record of a NaN or Inf gradient that the script passed to backward."""
    return NonFiniteOrigin(
        kind=KINDS[worst],
        phase="input",
        message=f"the gradient passed to `backward` is {_text(worst)}.",
        advice="check the argument of `backward`",
    )


def unlocated(where: str, worst: int, calls: Sequence[RecordedCall]) -> NonFiniteOrigin:
    """Return the record of a NaN or Inf whose origin no replay found."""
    if where == "loss":
        held, phase = f"the loss is {_text(worst)}", "loss"
        seen = _seen(calls, "the models' forward")
        if calls and all(call.level == 0 for call in calls):
            seen = "the models' outputs were finite"
        seen += ", and the loss graph does not show the operation" if seen else ""
    else:
        held, phase = "gradients have NaN or Inf, the loss is finite", "backward"
        arrived = [call for call in calls if call.arrived]
        if arrived and not any(call.given_finite for call in arrived):
            seen = (
                "the loss's gradients for the models already had NaN or Inf, and its graph is freed"
            )
        else:
            seen = _seen(calls, "the backward of the models")
    known = [held, *filter(None, [seen]), *_doubts(calls)]
    alone = all(call.repeatable for call in calls)
    return NonFiniteOrigin(
        kind=KINDS[worst],
        phase=phase,
        message="; ".join(known) + ".",
        advice=DEEP_ADVICE if alone else _ADVICE_FOR_MANY,
    )


def _seen(calls: Sequence[RecordedCall], what: str) -> str:
    """Return the result of the calls' replay in words; "" if no call could be replayed."""
    if calls and not any(call.repeats for call in calls):
        return ""
    return f"{what}, replayed, made no NaN or Inf from finite inputs"


def _doubts(calls: Sequence[RecordedCall]) -> list[str]:
    """Return the differences between the calls and their replay."""
    found = []
    for name in dict.fromkeys(call.name for call in calls if call.overwritten):
        found.append(f"the inputs of `{name}` were overwritten before its replay")
    for name in dict.fromkeys(call.name for call in calls if call.moved):
        found.append(f"the weights of `{name}` changed before its replay")
    for name in dict.fromkeys(call.name for call in calls if call.drew):
        found.append(f"`{name}` draws random numbers, but did not in its first steps")
    for name in dict.fromkeys(call.name for call in calls if not call.repeatable):
        found.append(f"`{name}` communicates with other ranks, so one rank cannot replay it")
    return found


def _text(worst: int) -> str:
    return "NaN" if worst == NAN else "infinite"
