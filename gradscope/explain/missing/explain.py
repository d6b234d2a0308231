"""Why parameters are not in the loss's graph: one cause and one place for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from gradscope.capture.hooks import hooked, watchable
from gradscope.capture.names import parameters_by_name
from gradscope.explain.missing.cuts import Cut, find_cuts
from gradscope.explain.missing.messages import answer, uncalled
from gradscope.explain.missing.tracer import Tracer
from gradscope.explain.shared.watches import FunctionWatch
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
    owned = parameters_by_name(model)
    names: dict[nn.Parameter, list[str]] = {}
    for name in missing:
        names.setdefault(owned[name], []).append(name)
    if not names:
        return ()
    tracer = Tracer(model, list(names), _run.__code__)
    loss, whole = _run(model, forward, tracer)
    found = find_cuts(tracer.observed.flow, tracer.observed.source, loss, whole, silent)
    listed = list(names.values())
    answers = [(cut, _named(cut, listed)) for cut in found]
    explained = _merged(answers, start)
    if whole:
        decided = tracer.observed.flow.values[loss].live if loss is not None else 0
        for cut in found:
            decided |= cut.mask
        rest = (group for i, group in enumerate(listed) if not decided >> i & 1)
        explained += uncalled(
            model, [name for group in rest for name in group], tracer.calls.called
        )
    order = {name: i for i, name in enumerate(missing)}
    return tuple(sorted(explained, key=lambda one: order[one.name]))


def _run(
    model: nn.Module, forward: Callable[[], torch.Tensor], tracer: Tracer
) -> tuple[int | None, bool]:
    """The value of the loss, and whether the run came to its end."""
    with hooked(watchable(model), tracer.calls.enter, tracer.calls.leave):
        try:
            with FunctionWatch(tracer.run):
                loss = forward()
        except Exception:
            # The run that the user asked for has raised it already, and explained it.
            return None, False
        return tracer.observed.value_of(loss), True


def _named(cut: Cut, listed: list[list[str]]) -> tuple[str, ...]:
    names, mask = [], cut.mask
    while mask:
        names += listed[(mask & -mask).bit_length() - 1]
        mask &= mask - 1
    return tuple(names)


def _merged(answers: list[tuple[Cut, tuple[str, ...]]], start: str | None) -> list[Answer]:
    """One answer for each cause and place."""
    sites: dict[object, tuple[Cut, list[str]]] = {}
    for cut, behind in answers:
        key: object = cut.value.site
        reason = cut.value.reason
        if cut.cause == "no-grad" and reason:
            # Whatever ran in one such block has one answer: where it began.
            at = (cut.value.site.file, cut.value.site.line)
            key = (reason, None if reason.rpartition(":")[2].isdigit() else at)
        sites.setdefault((cut.cause, key), (cut, []))[1].extend(behind)
    return [answer(cut, behind, start) for cut, behind in sites.values()]
