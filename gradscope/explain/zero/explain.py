"""Why gradients are zero: where each one ends on its way from the loss, and what ends it there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import free_nodes, storage_key
from gradscope.capture.names import buffer_names, first_names, parameters_by_name
from gradscope.explain.shared.module_calls import ModuleCalls
from gradscope.explain.shared.operations import Trait, by_node
from gradscope.explain.shared.watches import FunctionWatch
from gradscope.explain.zero.backward_trace import BackwardTrace, ZeroPoint
from gradscope.explain.zero.blockers import Blocker, Blockers
from gradscope.explain.zero.causes import cause_of
from gradscope.explain.zero.curves import ZeroCause
from gradscope.explain.zero.factors import FactorOrigins
from gradscope.explain.zero.forward_watch import ForwardWatch, ObservedValues, watching, with_hooks
from gradscope.explain.zero.messages import advice
from gradscope.explain.zero.node_gradients import any_nonzero
from gradscope.records.answers import Answer

#: Causes that are often meant: whether they last is looked at.
_PASSING = ("zero-weight", "masked")
#: So many steps are taken to see it: a zero head in front of zero gates needs two, with a zero
#: layer in front of these three.
_STEPS = 3


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
    owned = parameters_by_name(model)
    names: dict[torch.Tensor, list[str]] = {}
    for name in zero:
        names.setdefault(owned[name], []).append(name)
    if not names:
        return ()
    blockers = Blockers(model)
    nodes: list[Node] = []
    try:
        _run(model, forward, backward, names, blockers, nodes)
    finally:
        blockers.forget()
        free_nodes(nodes)
    found = blockers.found
    arrived, steps = _arrived([blocker for blocker in found if _may_pass(blocker.cause)], later)
    order = {name: i for i, name in enumerate(zero)}
    for blocker in found:
        blocker.behind.sort(key=lambda name: order[name])
    found.sort(key=lambda blocker: order[blocker.behind[0]])
    return tuple(_answer(blocker, arrived, steps) for blocker in found)


def _run(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    names: dict[torch.Tensor, list[str]],
    blockers: Blockers,
    nodes: list[Node],
) -> None:
    """The watched step; what ends the gradients goes into ``blockers``."""
    calls, watch = ModuleCalls(model, _run.__code__), ForwardWatch()
    with watching(model, calls):
        try:
            with FunctionWatch(watch.run):
                loss = forward()
            if loss.grad_fn is None:
                return
            trace = BackwardTrace(loss.grad_fn)
        except Exception:
            # The run that the user asked for has raised it already, and explained it.
            return
        try:
            short = not (watch.hooks or with_hooks(model))
            trace.backward(lambda: backward(loss), short=short)
            satisfied = not any_nonzero(loss.detach())
            _find_causes(model, trace, calls, watch.values, names, blockers, satisfied=satisfied)
        finally:
            watch.values.clear()
            nodes += trace.release()


def _find_causes(
    model: nn.Module,
    trace: BackwardTrace,
    calls: ModuleCalls,
    values: Mapping[Node, ObservedValues],
    names: dict[torch.Tensor, list[str]],
    blockers: Blockers,
    *,
    satisfied: bool,
) -> None:
    origins = FactorOrigins(_named(model), _stored(model), values)
    decided: dict[ZeroPoint, ZeroCause] = {}
    frozen = {name for name, p in parameters_by_name(model).items() if not p.requires_grad}
    for leaf, points in trace.points().items():
        for point in points if leaf in names else ():
            if point not in decided:
                got = trace.gradients(point.node) if point.kind == "op" else ()
                decided[point] = _with_details(cause_of(point, got, origins), trace, frozen)
            blockers.add(decided[point], names[leaf])
    blockers.locate(calls, values, trace, satisfied=satisfied)


def _with_details(cause: ZeroCause, trace: BackwardTrace, frozen: Collection[str]) -> ZeroCause:
    """Note where a weight of zeros is frozen, and where what an activation gives are logits."""
    if cause.why == "zero-weight" and cause.figure("name") in frozen:
        return replace(cause, figures=(*cause.figures, ("frozen", True)))
    node = cause.node
    taken = [] if node is None else trace.consumers(node)
    if not any(by_node(one).has(Trait.LOGITS) for one in taken):
        return cause
    return replace(cause, figures=(*cause.figures, ("logits", True)))


def _may_pass(cause: ZeroCause) -> bool:
    return cause.kind in _PASSING or cause.why == "clipped"


def _arrived(
    blockers: Sequence[Blocker], later: Callable[[], Collection[str] | None] | None
) -> tuple[dict[str, int], int]:
    """After how many optimizer steps each name had a gradient, and how many were made."""
    left = {name for blocker in blockers for name in blocker.behind}
    arrived: dict[str, int] = {}
    for step in range(1, _STEPS + 1):
        still = later() if later is not None and left else None
        if still is None:
            return arrived, step - 1
        arrived |= dict.fromkeys(left.difference(still), step)
        left.intersection_update(still)
    return arrived, _STEPS


def _answer(blocker: Blocker, arrived: dict[str, int], made: int) -> Answer:
    cause = blocker.cause
    recovers, steps = None, made
    if made and _may_pass(cause):
        recovers = all(name in arrived for name in blocker.behind)
        steps = max(arrived[name] for name in blocker.behind) if recovers else made
    return Answer(
        name=blocker.behind[0],
        kind="parameter",
        state="zero",
        message=blocker.text,
        cause=cause.kind,
        module=blocker.module,
        call=blocker.call,
        location=blocker.location,
        behind=tuple(blocker.behind),
        advice=advice(cause, recovers, steps, inside=blocker.module is not None),
        recovers=recovers,
        starts=blocker.starts,
    )


def _named(model: nn.Module) -> dict[int, str]:
    named = [*first_names(model), *buffer_names(model)]
    return {id(tensor): name for name, tensor in reversed(named)}


def _stored(model: nn.Module) -> dict[int, str]:
    """Names by memory: what needs no gradient is saved as a tensor of its own."""
    named = [*first_names(model), *buffer_names(model)]
    return {
        storage_key(tensor): name
        for name, tensor in reversed(named)
        if tensor.layout == torch.strided and tensor.numel()
    }
