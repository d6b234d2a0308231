"""Collects the points where gradients end, each with its cause, message and upstream parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.names import modules_by_name
from gradscope.explain.shared.frames import shown
from gradscope.explain.shared.node_forward import signed
from gradscope.explain.shared.operations import Operation, Trait, by_node, node_name
from gradscope.explain.shared.tracing_modes import ModuleCalls
from gradscope.explain.zero.factors import (
    FactorOrigin,
    FactorOrigins,
    NodeReplay,
    ZeroCause,
    factor,
    saved,
)
from gradscope.explain.zero.traces import (
    BackwardTrace,
    Gradients,
    ObservedValues,
    ZeroPoint,
    location,
)
from gradscope.explain.zero.zero_messages import message

_ATTENTION = "ScaledDotProduct"
#: PyTorch's wrapper of a module with a backward hook.
MODULE_HOOK = "BackwardHookFunction"
#: A slope below this is an end of the curve.
_GENTLE = 1e-4


def cause_of(point: ZeroPoint, got: Gradients, origins: FactorOrigins) -> ZeroCause:
    """Return the cause that ends a gradient at one point; ``got`` arrived there."""
    node, position = point.node, point.position
    if point.kind == "start":
        return ZeroCause("masked", node, "start")
    if point.kind == "sum":
        return _cancelled(point)
    operation, name = by_node(node), node_name(node)
    if name == MODULE_HOOK:
        return ZeroCause("masked", node, "module-hook")
    if isinstance(node, BackwardCFunction):
        return ZeroCause("non-differentiable", node, "function")
    replay = NodeReplay(node, position, got)
    if replay.empty:
        return _emptied(node, position)
    if operation.has(Trait.CURVED, Trait.SOFT):
        return curved(replay, operation)
    if operation.has(Trait.SOFTMAX):
        return normalised(replay, operation)
    if replay.passes(replay.scaled()):
        return underflow(replay)
    if name.startswith(_ATTENTION) and position < 2:
        return _attention(node)
    if replay.passes(replay.weighed()):
        return ZeroCause(None, node, "cancelled-inside")
    return _structural(replay, operation, origins)


def curved(replay: NodeReplay, operation: Operation) -> ZeroCause:
    """Return the cause at an activation that is nowhere exactly flat: a flat end, or too small a
    product."""
    slopes = replay.slopes()
    steepest = None
    if slopes is not None:
        known = slopes[~slopes.isnan()].abs()
        steepest = float(known.max()) if known.numel() else 0.0
    if steepest is not None and steepest > _GENTLE:
        if replay.passes(replay.scaled()):
            return underflow(replay)
        return ZeroCause(None, replay.node, "unknown")
    kind = "dead-activation" if operation.has(Trait.SOFT) else "saturated"
    if operation.name == "hardsigmoid":
        given = saved(replay.node, "self")
        if given is not None and float(given.max()) <= 0:  # its lower end is 0, as a ReLU's
            kind = "dead-activation"
    return ZeroCause(kind, replay.node, "flat", flat_figures(replay, slopes))


def normalised(replay: NodeReplay, operation: Operation) -> ZeroCause:
    """Return the cause at a softmax: certain of one entry, or an equal gradient for all."""
    node, log = replay.node, operation.has(Trait.LOGITS)
    result = saved(node, "result")
    certain = False
    if result is not None and result.numel():
        dim = signed(getattr(node, "_saved_dim", -1))
        dim = dim if -result.dim() <= dim < result.dim() else -1
        if result.shape[dim] == 1:
            return ZeroCause("saturated", node, "single-log" if log else "single")
        top = result.float().amax(dim)
        certain = bool(((top.exp() if log else top) > 1 - _GENTLE).all())
    if not certain and replay.passes(replay.scaled()):
        return underflow(replay)
    if not certain and replay.passes(replay.weighed()):
        return ZeroCause(None, node, "constant-sum")
    rows = None if result is None else result.numel() // max(1, result.shape[dim])
    return ZeroCause("saturated", node, "certain", (("rows", rows),))


def underflow(replay: NodeReplay) -> ZeroCause:
    """Return the cause of zeros that are products of nonzero numbers: underflow."""
    figures = (("largest", replay.largest), ("dtype", replay.dtype))
    return ZeroCause("underflow", replay.node, "small", figures)


def flat_figures(replay: NodeReplay, slopes: torch.Tensor | None) -> tuple[tuple[str, Any], ...]:
    """Return the number of flat places and units, and the range of the input."""
    figures: list[tuple[str, Any]] = [("dtype", replay.dtype)]
    if slopes is not None:
        reached = ~slopes.isnan()
        figures += [("reached", int(reached.sum())), ("places", slopes.numel())]
        if slopes.dim() > 1:
            axis = 1 if slopes.dim() > 3 else slopes.dim() - 1
            touched = reached.movedim(axis, 0).flatten(1).any(1)
            figures += [("units", int(touched.sum())), ("of", touched.numel())]
    given = saved(replay.node, "self")
    if given is not None and given.numel() and given.is_floating_point():
        low, high = (float(end) for end in given.float().aminmax())
        figures += [("low", low), ("high", high)]
    return tuple(figures)


def _cancelled(point: ZeroPoint) -> ZeroCause:
    variable = getattr(point.node, "variable", None)
    hooked = variable is not None and bool(variable._backward_hooks)
    if hooked or len(point.consumers) == 1:
        return ZeroCause("masked", None if variable is not None else point.node, "hook")
    latest = max(point.consumers, key=lambda node: node._sequence_nr())
    return ZeroCause(None, latest, "cancelled")


def _emptied(node: Node, position: int) -> ZeroCause:
    """Return the operation that selected nothing, or got nothing, upstream of one that got an empty
    tensor."""
    upstream = node.next_functions[position][0]
    node = node if by_node(node).has(Trait.CHOOSES) or upstream is None else upstream
    while not by_node(node).has(Trait.CHOOSES):
        empty = [one for one, _ in node.next_functions if one is not None and _is_empty(one)]
        if not empty:
            break
        if isinstance(empty[0], LEAF):
            return ZeroCause("masked", node, "empty")
        node = empty[0]
    return ZeroCause(
        "masked", node, "nothing-chosen" if by_node(node).has(Trait.CHOOSES) else "empty"
    )


def _is_empty(node: Node) -> bool:
    """Return True if the node's output has no elements."""
    if isinstance(node, LEAF):
        return not node.variable.numel()
    made = getattr(node, "_input_metadata", ())
    return any(0 in tuple(one.shape) for one in made)


def _structural(replay: NodeReplay, operation: Operation, origins: FactorOrigins) -> ZeroCause:
    """Return the cause of an operation that passes no gradient."""
    node, position, name = replay.node, replay.position, operation.name
    if operation.has(Trait.FLAT):
        bounds = (saved(node, "min"), saved(node, "max")) if name == "clamp" else (None, None)
        lower = bounds[0] is not None and not bool(bounds[0].any())
        figures = flat_figures(replay, replay.slopes())
        if name == "clamp" and not (lower and _below(node)):
            return ZeroCause("saturated", node, "clipped", figures)
        return ZeroCause("dead-activation", node, "flat", figures)
    if operation.has(Trait.STEP):
        return ZeroCause("non-differentiable", node, "step")
    if name == "exp":
        return ZeroCause("underflow", node, "exp", (("dtype", replay.dtype),))
    if name == "prod":
        given = saved(node, "self")
        if given is not None and bool(given.all()):
            return ZeroCause(
                "underflow", node, "prod", (("n", given.numel()), ("dtype", replay.dtype))
            )
    if name == "pow" and (base := saved(node, "self")) is not None and bool(base.all()):
        return ZeroCause("underflow", node, "power", (("dtype", replay.dtype),))
    if name == "maximum" and _with_zero(node):
        return ZeroCause("dead-activation", node, "flat", flat_figures(replay, None))
    if name.startswith("nll_loss"):
        return ZeroCause("masked", node, "labels")
    if operation.has(Trait.DISTANCE):
        return ZeroCause(None, node, "minimum")
    if operation.has(Trait.CERTAIN):
        return ZeroCause("saturated", node, "certain", (("rows", None),))
    pair = factor(node, position)
    if pair is not None and (pair[0] is None or bool((pair[0] == 0).any())):
        return _multiplied(replay, origins.of(node, *pair), pair[0])
    if operation.has(Trait.NORMALISES):
        given = saved(node, "input")
        if given is not None and not bool(given.any()):
            origin = origins.of(node, given, node.next_functions[0][0])
            return _multiplied(replay, origin, given)
        return ZeroCause(None, node, "constant")
    state = saved(node, "hx_") if "rnn" in name else None
    if state is not None and not bool(state.any()):
        return ZeroCause("masked", node, "first-state" if _has_steps(node) else "state")
    if operation.has(Trait.CHOOSES, Trait.JOINS):
        return ZeroCause("masked", node, _how_left_out(node))
    if name in ("add", "sub", "rsub"):
        return ZeroCause("masked", node, "times-zero")
    return ZeroCause(None, node, "unknown")


def _with_zero(node: Node) -> bool:
    """Return True if this is the maximum with a constant zero: a ReLU by another name."""
    sides = zip((saved(node, "self"), saved(node, "other")), node.next_functions, strict=True)
    return any(
        edge[0] is None and side is not None and not bool(side.any()) for side, edge in sides
    )


def _has_steps(node: Node) -> bool:
    """Return True if a fused recurrent layer ran several steps."""
    given = saved(node, "input")
    # On a CPU, time is first here in any case.
    on_cpu = type(node).__name__.startswith("Mkldnn")
    time = 0 if on_cpu else int(getattr(node, "_saved_batch_first", False))
    return given is not None and given.dim() == 3 and given.shape[time] > 1


def _attention(node: Node) -> ZeroCause:
    """Return the cause at a fused attention, whose softmax cannot be replayed alone."""
    keys = saved(node, "key")
    single = keys is not None and keys.shape[-2] == 1
    return ZeroCause("saturated", node, "single" if single else "attention")


def _how_left_out(node: Node) -> str:
    """Return the way in which a selecting operation leaves a gradient out."""
    operation = by_node(node)
    if operation.name in ("embedding", "embedding_bag"):
        read, padding = saved(node, "indices"), getattr(node, "_saved_padding_idx", None)
        all_padding = read is None or padding is None or bool((read == padding).all())
        return "padding" if all_padding else "only-padding"
    return "parts" if operation.has(Trait.JOINS) else "routing"


def _below(node: Node) -> bool:
    """Return True if a clamp's input is at or below its lower bound somewhere, as with a ReLU."""
    given, bound = saved(node, "self"), saved(node, "min")
    return given is not None and bound is not None and bool((given <= bound).any())


def _multiplied(replay: NodeReplay, origin: FactorOrigin, factor: torch.Tensor | None) -> ZeroCause:
    """Return the cause if the gradient is multiplied by zero wherever it is nonzero."""
    everywhere = factor is None or not bool(factor.any())
    figures = (
        ("name", origin.name),
        ("everywhere", everywhere),
        ("number", factor is not None and not factor.dim()),
    )
    if origin.kind == "unknown":
        if by_node(origin.at).has(Trait.NORMALISES):
            return ZeroCause(None, origin.at, "constant")
        return ZeroCause("dead-activation", origin.at, "zero-factor", figures)
    if origin.kind == "disjoint":
        return ZeroCause("masked", origin.at, "disjoint")
    if origin.kind == "zero-weight":
        return ZeroCause("zero-weight", origin.at, "zero-weight", figures)
    if origin.kind == "masked" and origin.name == "input":
        return ZeroCause("masked", origin.at, "input", figures)
    if origin.kind == "masked" and origin.data:
        return ZeroCause("masked", origin.at, "mask", figures)
    if origin.kind == "masked":
        return ZeroCause("masked", origin.at, _how_left_out(origin.at), figures)
    if origin.kind == "underflow":
        return ZeroCause("underflow", origin.at, "factor-small", (("dtype", replay.dtype),))
    return ZeroCause(origin.kind, origin.at, "zeros-out", figures)


#: Number of operations allowed between a layer and its consumer.
_FAR = 20
#: Causes that may pass, those that most likely do first.
_MILD: dict[str | None, int] = {"zero-weight": 0, "masked": 1, None: 2}


@dataclass(slots=True)
class Blocker:
    """One cause at one place, while its names are collected."""

    cause: ZeroCause
    upstream: list[str]
    module: str | None = None
    call: int | None = None
    location: str | None = None
    starts: str | None = None
    text: str = ""


@dataclass(slots=True)
class Blockers:
    """The causes, each with its upstream parameters; equal causes at one line are merged."""

    model: nn.Module
    found: list[Blocker] = field(default_factory=list)
    _by_cause: dict[tuple[str | None, Node | None, str], Blocker] = field(default_factory=dict)

    def add(self, cause: ZeroCause, names: Sequence[str]) -> None:
        """Note that these parameters are upstream of this cause too."""
        key = (cause.kind, cause.node, cause.why if cause.node is None else "")
        blocker = self._by_cause.setdefault(key, Blocker(cause, []))
        if blocker.cause.why == "zeros-out" and cause.why == "flat":
            blocker.cause = cause  # that it passes nothing on says more than that it gives zeros
        blocker.upstream.extend(name for name in names if name not in blocker.upstream)

    def locate(
        self,
        calls: ModuleCalls,
        values: Mapping[Node, ObservedValues],
        trace: BackwardTrace,
        *,
        satisfied: bool,
    ) -> None:
        """Locate each cause, and merge causes at one place.

        ``satisfied`` means that the loss is zero, so there is nothing left to learn.
        """
        listed = list(self._by_cause.values())
        nodes = [blocker.cause.node for blocker in listed if blocker.cause.node is not None]
        makers = dict(zip(nodes, calls.makers(nodes), strict=True))
        merged: dict[object, Blocker] = {}
        for blocker in listed:
            node = blocker.cause.node
            made = makers.get(node) if node is not None else None
            if node is not None:
                blocker.location = location(node) or location(trace.around.get(node, node))
            if made is not None:
                blocker.module, blocker.call = made.name, made.number
            blocker.starts = _starts(blocker, calls)
            seen: ObservedValues | None = None if node is None else values.get(node)
            hinge = satisfied and made is None and node is not None and _is_hinge(node, trace)
            blocker.cause = cause = _placed(blocker.cause, made is not None, seen, hinge)
            if cause.why == "module-hook":
                blocker.location = _hook_at(self.model, blocker.module)
            blocker.text = message(cause, blocker.location, seen)
            first = merged.setdefault(self._key(blocker), blocker)
            if first is not blocker:
                first.upstream += [name for name in blocker.upstream if name not in first.upstream]
        self.found = _by_names(merged.values())

    def _key(self, blocker: Blocker) -> object:
        kind, node = blocker.cause.kind, blocker.cause.node
        if node is None:  # a hook on one parameter
            return (kind, *blocker.upstream)
        if kind == "underflow" and blocker.location:
            # A gradient underflows somewhere in a loop or a stack of layers; the exact place
            # differs by weight.
            return (kind, blocker.location)
        return (kind, blocker.module, blocker.location)

    def forget(self) -> None:
        """Release the graph's nodes; their messages stay."""
        self._by_cause.clear()
        for blocker in self.found:
            cause = blocker.cause
            blocker.cause = ZeroCause(cause.kind, None, cause.why, cause.figures)


def _starts(blocker: Blocker, calls: ModuleCalls) -> str | None:
    """Return the zero weight, the module, or the layer whose result the operation got."""
    if blocker.cause.why == "zero-weight":
        name: str | None = blocker.cause.figure("name")
        return name
    if blocker.module or blocker.cause.node is None:
        return blocker.module
    given = [blocker.cause.node]
    while len(given) <= _FAR:
        following = [n for n, _ in given[-1].next_functions if n and not isinstance(n, LEAF)]
        if not following:
            break
        given.append(following[0])
    made = calls.makers(given[1:])
    return next((call.name for call in made if call is not None and call.name), blocker.module)


def _placed(cause: ZeroCause, inside: bool, seen: ObservedValues | None, hinge: bool) -> ZeroCause:
    """Adapt a cause to its place: inside a module, or outside every module as the loss is."""
    if cause.why == "clipped" and not inside:
        return replace(cause, kind="masked")  # a ratio that is clipped, as PPO does
    if cause.why == "flat" and hinge:
        return replace(cause, kind=None, why="satisfied")
    if cause.why == "mask" and seen is not None and seen.dropped:
        return replace(cause, why="dropout")
    return cause


def _is_hinge(node: Node, trace: BackwardTrace) -> bool:
    """Return True if the loss is only the mean or the sum of this operation's output."""
    if not by_node(node).has(Trait.HINGE):
        return False
    while following := trace.consumers(node):
        node = following[0]
        if len(following) > 1 or not by_node(node).has(Trait.REDUCES):
            return False
    return True


def _hook_at(model: nn.Module, module: str | None) -> str | None:
    """Return the line of a module's backward hook, if there is only one."""
    owner = None if module is None else modules_by_name(model)[module]
    hooks = (
        []
        if owner is None
        else [*owner._backward_hooks.values(), *owner._backward_pre_hooks.values()]
    )
    code = getattr(hooks[0], "__code__", None) if len(hooks) == 1 else None
    return None if code is None else f"{shown(code.co_filename)}:{code.co_firstlineno}"


def _by_names(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Merge places that end the gradients of the same parameters into the mildest one: a gradient
    by any path is enough."""
    by_names: dict[frozenset[str], list[Blocker]] = {}
    for blocker in _by_lines(blockers):
        by_names.setdefault(frozenset(blocker.upstream), []).append(blocker)
    for alike in by_names.values():
        alike.sort(key=lambda blocker: _MILD.get(blocker.cause.kind, len(_MILD)))
        for other in alike[1:]:
            alike[0].text += f" Another path is blocked too: {other.text}"
    return [alike[0] for alike in by_names.values()]


def _by_lines(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Merge modules that end the gradients of the same parameters at one line, as the heads of a
    detector do."""
    kept: list[Blocker] = []
    for blocker in blockers:
        for first in kept:
            same = (first.cause.kind, first.location) == (blocker.cause.kind, blocker.location)
            if same and blocker.location and not {*first.upstream}.isdisjoint(blocker.upstream):
                first.upstream += [name for name in blocker.upstream if name not in first.upstream]
                if blocker.module is not None and blocker.module != first.module:
                    first.text += f" The same in `{blocker.module or 'the model'}`."
                break
        else:
            kept.append(blocker)
    return kept
