"""Why parameters are not in the loss's graph: one cause and one place for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from gradscope.capture.hooks import hooked, watchable
from gradscope.explain._sentences import answer, uncalled
from gradscope.explain._tracing import Tracer
from gradscope.explain._verdicts import Verdict, verdicts
from gradscope.records.answers import Answer


def explain_missing(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    missing: Sequence[str],
    *,
    start: str | None = None,
    silent: Collection[str] | None = None,
) -> tuple[Answer, ...]:
    """Why parameters that require a gradient got none from the loss.

    Runs the model once more and follows the parameters' data through every operation, also where
    no gradient path goes. Only for when something is wrong: it is slow next to a plain run.

    Args:
        model: the model that owns the parameters.
        forward: runs the model and the loss and returns the loss. Where it raises, what was
            decided by then is answered.
        missing: names of the parameters.
        start: what ``forward`` returns the sum of, where that is another output than the loss.
        silent: the graph's nodes that were seen to give no gradient on, as ``ClipBackward``; None
            where backward was not watched, and any autograd function may be one.

    Returns:
        One answer per cause and place, those with the earliest first name in ``missing`` first.
        A parameter of a scripted module that nothing was seen to use has none: what scripted code
        calls cannot be seen. Nor has one that this run's loss does lead to.
    """
    owned = dict(model.named_parameters(remove_duplicate=False))
    names: dict[nn.Parameter, list[str]] = {}
    for name in missing:
        names.setdefault(owned[name], []).append(name)
    if not names:
        return ()
    tracer = Tracer(model, list(names), _run.__code__)
    loss, whole = _run(model, forward, tracer)
    found = verdicts(tracer.known.flow, tracer.known.source, loss, whole, silent)
    listed = list(names.values())
    answers = [(verdict, _named(verdict, listed)) for verdict in found]
    told = _merged(answers, start)
    if whole:
        decided = tracer.known.flow.values[loss].live if loss is not None else 0
        for verdict in found:
            decided |= verdict.mask
        rest = (group for i, group in enumerate(listed) if not decided >> i & 1)
        told += uncalled(model, [name for group in rest for name in group], tracer.executing.called)
    order = {name: i for i, name in enumerate(missing)}
    return tuple(sorted(told, key=lambda one: order[one.name]))


def _run(
    model: nn.Module, forward: Callable[[], torch.Tensor], tracer: Tracer
) -> tuple[int | None, bool]:
    """The value of the loss, and whether the run came to its end."""
    with hooked(watchable(model), tracer.executing.enter, tracer.executing.leave):
        try:
            with tracer:
                loss = forward()
        except Exception:
            # The run that the user asked for has already told of it, or this one would repeat it.
            return None, False
        return tracer.known.value_of(loss), True


def _named(verdict: Verdict, listed: list[list[str]]) -> tuple[str, ...]:
    names, mask = [], verdict.mask
    while mask:
        names += listed[(mask & -mask).bit_length() - 1]
        mask &= mask - 1
    return tuple(names)


def _merged(answers: list[tuple[Verdict, tuple[str, ...]]], start: str | None) -> list[Answer]:
    """One answer for each cause and place."""
    places: dict[object, tuple[Verdict, list[str]]] = {}
    for verdict, behind in answers:
        key: object = verdict.value.place
        reason = verdict.value.reason
        if verdict.cause == "no-grad" and reason:
            # Whatever ran in one such block has one answer: where it began.
            at = (verdict.value.place.file, verdict.value.place.line)
            key = (reason, None if reason.rpartition(":")[2].isdigit() else at)
        places.setdefault((verdict.cause, key), (verdict, []))[1].extend(behind)
    return [answer(verdict, behind, start) for verdict, behind in places.values()]
