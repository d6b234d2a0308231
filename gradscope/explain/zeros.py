"""Why gradients are zero: where each one ends on its way from the loss, and what ends it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import let_go, storage_key
from gradscope.explain._zero_factors import Origins, op
from gradscope.explain._zero_graph import Reach, Stop
from gradscope.explain._zero_judge import Verdict, judge
from gradscope.explain._zero_run import Calls, Seen, Values, location, watching, with_hooks
from gradscope.explain._zero_words import advice, message
from gradscope.records import Answer

#: Causes that are often meant: whether they last is looked at.
_PASSING = ("zero-weight", "masked")
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
            ``zero-weight`` or ``masked``. The parameters then have the ``.grad`` of this run; where
            it is zero, it may be None.

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
    places = _Places(model)
    nodes: list[Node] = []
    try:
        _run(model, forward, backward, names, places, nodes)
    finally:
        places.forget()
        let_go(nodes)
    found = places.found
    still = None
    if later is not None and any(place.verdict.cause in _PASSING for place in found):
        still = later()
    order = {name: i for i, name in enumerate(zero)}
    for place in found:
        place.behind.sort(key=lambda name: order[name])
    found.sort(key=lambda place: order[place.behind[0]])
    return tuple(_answer(place, still) for place in found)


def _run(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    names: dict[torch.Tensor, list[str]],
    places: _Places,
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
            _judge(model, reach, calls, values, names, places)
        finally:
            values.of.clear()
            nodes += reach.release()


def _judge(
    model: nn.Module,
    reach: Reach,
    calls: Calls,
    values: Values,
    names: dict[torch.Tensor, list[str]],
    places: _Places,
) -> None:
    origins = Origins(_named(model), _stored(model), values.of)
    decided: dict[Stop, Verdict] = {}
    for leaf, stops in reach.stops().items():
        for stop in stops if leaf in names else ():
            if stop not in decided:
                got = reach.gradients(stop.node) if stop.kind == "op" else ()
                decided[stop] = _with_logits(judge(stop, got, origins), reach)
            places.add(decided[stop], names[leaf])
    places.locate(calls, values, reach)


def _with_logits(verdict: Verdict, reach: Reach) -> Verdict:
    """Note where what an activation gives goes straight into a loss's softmax."""
    node = verdict.node
    taken = [] if node is None else [op(one) for one in reach.consumers(node)]
    if not any(name.startswith(_LOGITS) for name in taken):
        return verdict
    return replace(verdict, figures=(*verdict.figures, ("logits", True)))


@dataclass(slots=True)
class _Place:
    """One cause at one place, while its names are collected."""

    verdict: Verdict
    behind: list[str]
    module: str | None = None
    call: int | None = None
    location: str | None = None
    said: str = ""


@dataclass(slots=True)
class _Places:
    """The verdicts, each with what is behind it; those of one cause and line are one."""

    model: nn.Module
    found: list[_Place] = field(default_factory=list)
    _by_verdict: dict[tuple[str | None, Node | None, str], _Place] = field(default_factory=dict)

    def add(self, verdict: Verdict, names: Sequence[str]) -> None:
        """These parameters are behind this verdict too."""
        key = (verdict.cause, verdict.node, verdict.why if verdict.node is None else "")
        place = self._by_verdict.setdefault(key, _Place(verdict, []))
        if place.verdict.why == "zeros-out" and verdict.why == "flat":
            place.verdict = verdict  # that it passes nothing on says more than that it gives zeros
        place.behind.extend(name for name in names if name not in place.behind)

    def locate(self, calls: Calls, values: Values, reach: Reach) -> None:
        """Say where each is, and merge what is at one place."""
        listed = list(self._by_verdict.values())
        nodes = [place.verdict.node for place in listed if place.verdict.node is not None]
        makers = dict(zip(nodes, calls.makers(nodes), strict=True))
        merged: dict[object, _Place] = {}
        for place in listed:
            node = place.verdict.node
            made = makers.get(node) if node is not None else None
            if node is not None:
                place.location = location(node) or location(reach.around.get(node, node))
            if made is not None:
                place.module, place.call = made
            seen: Seen | None = None if node is None else values.of.get(node)
            place.said = message(place.verdict, place.location, seen)
            first = merged.setdefault(self._key(place), place)
            if first is not place:
                first.behind += [name for name in place.behind if name not in first.behind]
        self.found = list(merged.values())

    def _key(self, place: _Place) -> object:
        cause, node = place.verdict.cause, place.verdict.node
        if node is None:  # a hook on one parameter
            return (cause, *place.behind)
        if cause == "underflow" and place.location:
            # It runs out somewhere in a loop or a stack of layers: where exactly differs by weight.
            return (cause, place.location)
        return (cause, place.module, place.location)

    def forget(self) -> None:
        """Let the graph's nodes go; what was said of them stays."""
        self._by_verdict.clear()
        for place in self.found:
            verdict = place.verdict
            place.verdict = Verdict(verdict.cause, None, verdict.why, verdict.figures)


def _answer(place: _Place, still: Collection[str] | None) -> Answer:
    verdict = place.verdict
    recovers = None
    if still is not None and verdict.cause in _PASSING:
        recovers = not any(name in still for name in place.behind)
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
        advice=advice(verdict, recovers, inside=place.module is not None),
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
