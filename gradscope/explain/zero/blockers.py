"""Collects the points at which gradients end, with cause, message and upstream parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.names import modules_by_name
from gradscope.explain.shared.frames import shown
from gradscope.explain.shared.operations import Trait, by_node
from gradscope.explain.shared.tracing_modes import ModuleCalls
from gradscope.explain.zero.flat_activations import ZeroCause
from gradscope.explain.zero.traces import BackwardTrace, ObservedValues, location
from gradscope.explain.zero.zero_messages import message

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
            # It runs out somewhere in a loop or a stack of layers: where exactly differs by weight.
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
    hooks = [] if owner is None else [*owner._backward_hooks.values(), *_before(owner)]
    code = getattr(hooks[0], "__code__", None) if len(hooks) == 1 else None
    return None if code is None else f"{shown(code.co_filename)}:{code.co_firstlineno}"


def _before(module: nn.Module) -> list[Callable[..., Any]]:
    return list(module._backward_pre_hooks.values())


def _by_names(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Merge places that end the gradients of the same parameters into the mildest one: a gradient
    by any path is enough.
    """
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
