"""Finds the first module that returned a NaN or Inf, from the hooks of a sampled step.

It serves models whose calls one rank alone cannot replay. The module and the phase are known, the
operation is not. If neither is known, the message says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import distributed

from gradscope.explain.non_finite.reasons import INF, KINDS, NAN
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.modules import ModuleCall
from gradscope.records.tensors import TensorStats
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.typeset.numbers import plural

_WHICH = "; a run with one process finds the operation"
_ADVICE = "run it with one process: `gradscope run` then names the operation and its inputs"


def first_non_finite_module(
    calls: Sequence[ModuleCall], where: str, worst: int
) -> NonFiniteOrigin | None:
    """Return the first module that produced it from finite numbers; None if no record shows it.

    Args:
        calls: the calls of one model.
        where: "loss" for a root with NaN or Inf; "gradients" if only they have it.
        worst: the kind to search for, NaN or Inf.
    """
    if where == "loss":
        return _in_forward(calls, worst)
    return _in_backward(calls, worst)


def returned_finite(calls: Sequence[ModuleCall]) -> bool:
    """Return True if the outputs of the outermost modules were finite, as far as recorded."""
    names = {call.name for call in calls}
    outer = [one for one in calls if not any(_is_inside(one.name, name) for name in names)]
    return bool(outer) and not any(_bad(_given_back(one), INF) for one in outer)


def _is_inside(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))


def _in_forward(calls: Sequence[ModuleCall], worst: int) -> NonFiniteOrigin | None:
    made = [one for one in calls if _bad(_given_back(one), worst) and not _bad(_taken(one), worst)]
    inner = _innermost(made)
    if inner:
        first = min(inner, key=lambda call: call.order)
        message = (
            f"{_called(first)} returned {_text(worst)} in {_rank()} forward; its inputs had none"
        )
        return _origin(first, "forward", worst, message, _given_back(first), _taken(first))
    root = min(calls, key=lambda call: call.order, default=None)
    if root is None or root.name or not _bad(_taken(root), worst):
        return None
    message = f"the model received {_text(worst)} as input in {_rank()} forward"
    return _origin(root, "input", worst, message, _taken(root), ())


def _in_backward(calls: Sequence[ModuleCall], worst: int) -> NonFiniteOrigin | None:
    # NaN or Inf: the parameters' gradients do not show which came first.
    sent = [one for one in calls if _bad(_sent(one), INF)]
    inner = _innermost([one for one in sent if _arrived(one) and not _bad(_arrived(one), INF)])
    if not inner:
        arrived = [stats for one in calls for stats in _arrived(one)]
        if sent or not arrived or _bad(arrived, INF):
            return None
        message = (
            f"every module gradient in {_rank()} backward was finite: the origin is on another "
            "rank or in a parameter's gradient"
        )
        return NonFiniteOrigin(KINDS[worst], "backward", f"{message}.", advice=_ADVICE)
    latest = max(inner, key=lambda call: call.order)
    worst = NAN if _bad(_sent(latest), NAN) else INF
    message = f"{_called(latest)} sent back {_text(worst)} in {_rank()} backward; it received none"
    return _origin(latest, "backward", worst, message, _sent(latest), _arrived(latest))


def _origin(
    call: ModuleCall,
    phase: str,
    worst: int,
    message: str,
    made: Sequence[TensorStats],
    given: Sequence[TensorStats],
) -> NonFiniteOrigin:
    count = sum(_broken(stats, worst) for stats in made)
    total = sum(stats.numel for stats in made)
    return NonFiniteOrigin(
        kind=KINDS[worst],
        phase=phase,
        message=f"{message}: {count} of {plural(total, 'element')}{_WHICH}.",
        name=call.name or None,
        call=call.call,
        count=count,
        inputs=tuple(given),
        advice=_ADVICE,
    )


def _innermost(calls: Sequence[ModuleCall]) -> list[ModuleCall]:
    """Return the calls whose module contains no other of them: an outer module only passes on the
    result.
    """
    names = {call.name for call in calls}
    return [call for call in calls if not any(_is_inside(name, call.name) for name in names)]


def _given_back(call: ModuleCall) -> list[TensorStats]:
    return [one.activation for one in call.outputs]


def _taken(call: ModuleCall) -> list[TensorStats]:
    return [one.activation for one in call.inputs]


def _arrived(call: ModuleCall) -> list[TensorStats]:
    return [one.gradient for one in call.outputs if one.gradient is not None]


def _sent(call: ModuleCall) -> list[TensorStats]:
    return [one.gradient for one in call.inputs if one.gradient is not None]


def _bad(several: Iterable[TensorStats], worst: int) -> bool:
    return any(_broken(stats, worst) for stats in several)


def _broken(stats: TensorStats, worst: int) -> int:
    """Return the number of NaN elements, or of NaN and Inf. The infinities of a mask do not produce
    NaN."""
    nan = stats.nan or 0
    return nan if worst == NAN else nan + (stats.inf or 0)


def _called(call: ModuleCall) -> str:
    if not call.name:
        return f"the model ({call.type})"
    return f"`{call.name}` ({call.type})"


def _rank() -> str:
    if distributed.is_available() and distributed.is_initialized():
        return f"rank {distributed.get_rank()}'s"
    return "the"


def _text(worst: int) -> str:
    return "NaN" if worst == NAN else "infinities"


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
        message=f"the gradient passed to `backward` is {_message(worst)}.",
        advice="check the argument of `backward`",
    )


def unlocated(where: str, worst: int, calls: Sequence[RecordedCall]) -> NonFiniteOrigin:
    """Return the record of a NaN or Inf whose origin no replay found."""
    if where == "loss":
        held, phase = f"the loss is {_message(worst)}", "loss"
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


def _message(worst: int) -> str:
    return "NaN" if worst == NAN else "infinite"
