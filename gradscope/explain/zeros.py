"""Why gradients are zero: where each one ends on its way from the loss, and what ends it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import let_go, storage_key
from gradscope.explain._zero_curves import Verdict
from gradscope.explain._zero_factors import Origins, op
from gradscope.explain._zero_graph import Reach, Stop
from gradscope.explain._zero_judge import judge
from gradscope.explain._zero_passing import some
from gradscope.explain._zero_places import Place, Places
from gradscope.explain._zero_run import Calls, Values, watching, with_hooks
from gradscope.explain._zero_words import advice
from gradscope.records.answers import Answer

#: Causes that are often meant: whether they last is looked at.
_PASSING = ("zero-weight", "masked")
#: So many steps are taken to see it: a zero head in front of zero gates needs two, with a zero
#: layer in front of these three.
_STEPS = 3
#: What takes logits as they are.
_LOGITS = ("LogSoftmax", "BinaryCrossEntropyWithLogits")


def explain_zeros(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    zero: Sequence[str],
    *,
    later: Callable[[], Collection[str] | None] | None = None,
) -> tuple[Answer, ...]:
    """Why parameters got a gradient of nothing but zeros.

    Runs the model once more, forward and then backward as far as gradients come, watches every
    edge of the graph, and asks the operations at which gradients end again. Where the model or its
    user has hooks in backward, all of it runs, and parameters have zeros in their ``.grad``.

    Args:
        model: the model that owns the parameters; their ``.grad`` must be None.
        forward: runs the model and the loss and returns the loss.
        backward: one backward from the loss, which must keep the graph (``retain_graph=True``).
        zero: names of the parameters whose gradient is zero.
        later: makes an optimizer step and gives the names whose gradient is zero after it, or None
            where it cannot be made. Asked only where a cause is found that may pass,
            ``zero-weight`` or ``masked``, and again, three times at most, while something is left.
            At first the parameters have the ``.grad`` of this run; it may be None for a zero.

    Returns:
        One answer per cause and place, those with the earliest first name in ``zero`` first. The
        cause is None where none of the usual ones fits, such as gradients that cancel exactly.
    """
    owned = dict(model.named_parameters(remove_duplicate=False))
    names: dict[torch.Tensor, list[str]] = {}
    for name in zero:
        names.setdefault(owned[name], []).append(name)
    if not names:
        return ()
    places = Places(model)
    nodes: list[Node] = []
    try:
        _run(model, forward, backward, names, places, nodes)
    finally:
        places.forget()
        let_go(nodes)
    found = places.found
    arrived, steps = _arrived([place for place in found if _may_pass(place.verdict)], later)
    order = {name: i for i, name in enumerate(zero)}
    for place in found:
        place.behind.sort(key=lambda name: order[name])
    found.sort(key=lambda place: order[place.behind[0]])
    return tuple(_answer(place, arrived, steps) for place in found)


def _run(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    names: dict[torch.Tensor, list[str]],
    places: Places,
    nodes: list[Node],
) -> None:
    """The watched step; what ends the gradients goes into ``places``."""
    calls, values = Calls(model), Values()
    with watching(model, calls):
        try:
            with values:
                loss = forward()
            if loss.grad_fn is None:
                return
            reach = Reach(loss.grad_fn)
        except Exception:
            # The run that the user asked for has already told of it, or this one would repeat it.
            return
        try:
            short = not (values.hooks or with_hooks(model))
            reach.backward(lambda: backward(loss), short=short)
            satisfied = not some(loss.detach())
            _judge(model, reach, calls, values, names, places, satisfied=satisfied)
        finally:
            values.of.clear()
            nodes += reach.release()


def _judge(
    model: nn.Module,
    reach: Reach,
    calls: Calls,
    values: Values,
    names: dict[torch.Tensor, list[str]],
    places: Places,
    *,
    satisfied: bool,
) -> None:
    origins = Origins(_named(model), _stored(model), values.of)
    decided: dict[Stop, Verdict] = {}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    for leaf, stops in reach.stops().items():
        for stop in stops if leaf in names else ():
            if stop not in decided:
                got = reach.gradients(stop.node) if stop.kind == "op" else ()
                decided[stop] = _told_more(judge(stop, got, origins), reach, frozen)
            places.add(decided[stop], names[leaf])
    places.locate(calls, values, reach, satisfied=satisfied)


def _told_more(verdict: Verdict, reach: Reach, frozen: Collection[str]) -> Verdict:
    """Note where a weight of zeros is frozen, and where what an activation gives are logits."""
    if verdict.why == "zero-weight" and verdict.figure("name") in frozen:
        return replace(verdict, figures=(*verdict.figures, ("frozen", True)))
    node = verdict.node
    taken = [] if node is None else [op(one) for one in reach.consumers(node)]
    if not any(name.startswith(_LOGITS) for name in taken):
        return verdict
    return replace(verdict, figures=(*verdict.figures, ("logits", True)))


def _may_pass(verdict: Verdict) -> bool:
    return verdict.cause in _PASSING or verdict.why == "clipped"


def _arrived(
    places: Sequence[Place], later: Callable[[], Collection[str] | None] | None
) -> tuple[dict[str, int], int]:
    """After how many optimizer steps each name had a gradient, and how many were made."""
    left = {name for place in places for name in place.behind}
    arrived: dict[str, int] = {}
    for step in range(1, _STEPS + 1):
        still = later() if later is not None and left else None
        if still is None:
            return arrived, step - 1
        arrived |= dict.fromkeys(left.difference(still), step)
        left.intersection_update(still)
    return arrived, _STEPS


def _answer(place: Place, arrived: dict[str, int], made: int) -> Answer:
    verdict = place.verdict
    recovers, steps = None, made
    if made and _may_pass(verdict):
        recovers = all(name in arrived for name in place.behind)
        steps = max(arrived[name] for name in place.behind) if recovers else made
    return Answer(
        name=place.behind[0],
        kind="parameter",
        state="zero",
        message=place.said,
        cause=verdict.cause,
        module=place.module,
        call=place.call,
        location=place.location,
        behind=tuple(place.behind),
        advice=advice(verdict, recovers, steps, inside=place.module is not None),
        recovers=recovers,
    )


def _named(model: nn.Module) -> dict[int, str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {id(tensor): name for name, tensor in reversed(named)}


def _stored(model: nn.Module) -> dict[int, str]:
    """Names by memory: what needs no gradient is saved as a tensor of its own."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {
        storage_key(tensor): name
        for name, tensor in reversed(named)
        if tensor.layout == torch.strided and tensor.numel()
    }
