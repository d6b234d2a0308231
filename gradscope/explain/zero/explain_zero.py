"""Explains zero gradients: the place where each becomes zero on its way from the loss, and the
cause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import CodeType

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF, free_nodes, storage_key
from gradscope.capture.names import buffer_names, first_names, parameters_by_name
from gradscope.capture.nodes import stacks_recorded
from gradscope.explain.shared.operations import Trait, by_node
from gradscope.explain.shared.tracing_modes import (
    Guarding,
    ModuleCalls,
    functions_traced,
    unguarded,
)
from gradscope.explain.zero.causes import Blocker, Blockers, cause_of
from gradscope.explain.zero.factors import FactorOrigins, ZeroCause
from gradscope.explain.zero.traces import (
    BackwardTrace,
    ForwardTracer,
    ZeroPoint,
    any_nonzero,
    with_hooks,
)
from gradscope.explain.zero.zero_messages import advice
from gradscope.records.answers import Answer

#: Causes that are often intended: whether they last is checked.
_PASSING = ("zero-weight", "masked")
#: Number of steps to test: a zero head before zero gates needs two, with a zero layer before these
#: three.
_STEPS = 3


class ZeroTrace:
    """Traces one forward and one backward, to find where gradients end on their way to parameters.

    Args:
        model: the model that owns the parameters.
        zero: names of the parameters whose gradient is zero.
        last: the code of the function that starts the traced code: the frames around it are not
            the user's.
        guarding: wraps the hooks, so that they never raise.
    """

    def __init__(
        self,
        model: nn.Module,
        zero: Sequence[str],
        last: CodeType,
        *,
        guarding: Guarding = unguarded,
    ) -> None:
        owned = parameters_by_name(model)
        self._names: dict[torch.Tensor, list[str]] = {}
        for name in zero:
            self._names.setdefault(owned[name], []).append(name)
        self._model, self._zero, self._guarding = model, tuple(zero), guarding
        self._calls, self._tracer = ModuleCalls(model, last), ForwardTracer()
        self._blockers = Blockers(model)

    @contextmanager
    def forward(self, *, stacks: bool = True) -> Iterator[None]:
        """Trace the operations of the block.

        Args:
            stacks: True if each node records its Python stack, which gives the line; otherwise the
                caller provides it.
        """
        recorded = stacks_recorded() if stacks else nullcontext()
        with recorded, functions_traced(self._model, self._calls, self._tracer.run, self._guarding):
            yield

    @property
    def has_hooks(self) -> bool:
        """True if a hook reads or changes gradients in backward."""
        return self._tracer.hooks or with_hooks(self._model)

    @property
    def is_recomputed(self) -> bool:
        """True if backward would run a part of forward again, as a checkpoint does."""
        return self._tracer.recomputed

    def backward(self, loss: torch.Tensor, run: Callable[[], None]) -> list[Node]:
        """Trace one backward from ``loss``, and find the causes that end gradients.

        Args:
            loss: the start of backward.
            run: runs backward, keeps the graph, and writes gradients to ``.grad``.

        Returns:
            The traced nodes, to be freed when the graph is gone.
        """
        assert loss.grad_fn is not None
        trace = BackwardTrace(loss.grad_fn)
        try:
            trace.backward(run, short=not self.has_hooks)
            self._find(loss, trace)
        finally:
            nodes = trace.release()
        return nodes

    def replay(self, loss: torch.Tensor, gradient: torch.Tensor | None = None) -> list[Node] | None:
        """Trace a graph before another backward runs through it.

        It computes gradients only, and writes no ``.grad``.

        Args:
            loss: the start of that backward.
            gradient: the gradient passed to it.

        Returns:
            The traced nodes. None, without a run, if no parameter is upstream of the loss, or if
            code outside of PyTorch would be called.
        """
        assert loss.grad_fn is not None
        trace = BackwardTrace(loss.grad_fn)
        try:
            leaves = [one.variable for one in trace.nodes if isinstance(one, LEAF)]
            wanted = [leaf for leaf in leaves if leaf in self._names]
            foreign = any(isinstance(one, BackwardCFunction) for one in trace.nodes)
            if not wanted or foreign or self.has_hooks or self.is_recomputed:
                trace.release()
                return None
            given = torch.ones_like(loss) if gradient is None else gradient
            got = torch.autograd.grad(loss, wanted, given, retain_graph=True, allow_unused=True)
            trace.received = dict(zip(wanted, got, strict=True))
            self._find(loss, trace)
        finally:
            nodes = trace.release()
        return nodes

    def _find(self, loss: torch.Tensor, trace: BackwardTrace) -> None:
        values, tensors = (
            self._tracer.values,
            [*first_names(self._model), *buffer_names(self._model)],
        )
        origins = FactorOrigins(
            {id(tensor): name for name, tensor in reversed(tensors)},
            # A tensor without a gradient is saved as a separate tensor in the same memory.
            {
                storage_key(tensor): name
                for name, tensor in reversed(tensors)
                if tensor.layout == torch.strided and tensor.numel()
            },
            values,
        )
        decided: dict[ZeroPoint, ZeroCause] = {}
        owned = parameters_by_name(self._model)
        frozen = {name for name, p in owned.items() if not p.requires_grad}
        for leaf, points in trace.points().items():
            for point in points if leaf in self._names else ():
                if point not in decided:
                    got = trace.gradients(point.node) if point.kind == "op" else ()
                    decided[point] = _with_details(cause_of(point, got, origins), trace, frozen)
                self._blockers.add(decided[point], self._names[leaf])
        satisfied = not any_nonzero(loss.detach())
        self._blockers.locate(self._calls, values, trace, satisfied=satisfied)

    def forget(self) -> None:
        """Release the graph; findings stay."""
        self._tracer.values.clear()
        self._blockers.forget()

    def answers(
        self, later: Callable[[], Collection[str] | None] | None = None, *, seen: int = 0
    ) -> tuple[Answer, ...]:
        """Return one answer per cause and place, sorted by their first names.

        The cause is None if it is not a usual one, for example if gradients cancel exactly.

        Args:
            later: as for ``explain_zeros``.
            seen: the number of optimizer steps with zero gradients, if known.
        """
        found = self._blockers.found
        passing = [blocker for blocker in found if _may_pass(blocker.cause)]
        arrived, steps = ({}, seen) if seen else _arrived(passing, later)
        order = {name: i for i, name in enumerate(self._zero)}
        for blocker in found:
            blocker.upstream.sort(key=lambda name: order[name])
        found.sort(key=lambda blocker: order[blocker.upstream[0]])
        return tuple(_answer(blocker, arrived, steps) for blocker in found)


def explain_zeros(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    zero: Sequence[str],
    *,
    later: Callable[[], Collection[str] | None] | None = None,
) -> tuple[Answer, ...]:
    """Explain parameters whose gradient is exactly zero.

    Runs forward again, then backward as far as gradients are nonzero, and traces every edge of the
    graph. It runs the operations at which gradients end once more, to find the cause. With hooks in
    backward, the full backward runs, and parameters have zeros in their ``.grad``.

    Args:
        model: the model that owns the parameters; their ``.grad`` must be None.
        forward: runs the model and the loss and returns the loss.
        backward: one backward from the loss, which must keep the graph (``retain_graph=True``).
        zero: names of the parameters whose gradient is zero.
        later: makes an optimizer step and returns the names whose gradient is still zero, or None
            if it cannot. Called up to three times, and only for the causes ``zero-weight`` and
            ``masked``, which may be temporary. At the first call, parameters have the ``.grad`` of
            this run; None stands for a zero.

    Returns:
        As ``ZeroTrace.answers``.
    """
    if not zero:
        return ()
    trace = ZeroTrace(model, zero, _run.__code__)
    nodes: list[Node] = []
    try:
        _run(trace, forward, backward, nodes)
    finally:
        trace.forget()
        free_nodes(nodes)
    return trace.answers(later)


def _run(
    trace: ZeroTrace,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    nodes: list[Node],
) -> None:
    """Run the traced step; traced nodes go into ``nodes``."""
    with trace.forward():
        try:
            loss = forward()
        except Exception:
            # The run that the user asked for has raised it already, and explained it.
            return
        if loss.grad_fn is not None:
            nodes += trace.backward(loss, lambda: backward(loss))


def _with_details(cause: ZeroCause, trace: BackwardTrace, frozen: Collection[str]) -> ZeroCause:
    """Note a frozen weight of zeros, and an activation that gives logits."""
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
    """Return for each name the optimizer step after which it had a gradient, and the number of
    steps."""
    left = {name for blocker in blockers for name in blocker.upstream}
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
        recovers = all(name in arrived for name in blocker.upstream)
        steps = max(arrived[name] for name in blocker.upstream) if recovers else made
    return Answer(
        name=blocker.upstream[0],
        kind="parameter",
        state="zero",
        message=blocker.text,
        cause=cause.kind,
        module=blocker.module,
        call=blocker.call,
        location=blocker.location,
        upstream=tuple(blocker.upstream),
        advice=advice(cause, recovers, steps, inside=blocker.module is not None),
        recovers=recovers,
        starts=blocker.starts,
        severity="info" if cause.why == "satisfied" else None,
    )
