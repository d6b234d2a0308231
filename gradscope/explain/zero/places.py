"""The places at which gradients end, each with its cause, its words and what is behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.autograd.graph import Node

from gradscope.explain.shared.frames import shown
from gradscope.explain.zero.backward_trace import Reach
from gradscope.explain.zero.curves import Verdict
from gradscope.explain.zero.factors import op
from gradscope.explain.zero.forward_watch import Calls, Seen, Values, location
from gradscope.explain.zero.messages import message

#: Causes that may pass, those that most likely do first.
_MILD: dict[str | None, int] = {"zero-weight": 0, "masked": 1, None: 2}
#: What margins are made of, and what makes one number of a batch of them.
_HINGES = frozenset(["Relu", "ClampMin", "Clamp"])
_REDUCING = frozenset(["Mean", "Sum", "Add", "Div"])


@dataclass(slots=True)
class Place:
    """One cause at one place, while its names are collected."""

    verdict: Verdict
    behind: list[str]
    module: str | None = None
    call: int | None = None
    location: str | None = None
    said: str = ""


@dataclass(slots=True)
class Places:
    """The verdicts, each with what is behind it; those of one cause and line are one."""

    model: nn.Module
    found: list[Place] = field(default_factory=list)
    _by_verdict: dict[tuple[str | None, Node | None, str], Place] = field(default_factory=dict)

    def add(self, verdict: Verdict, names: Sequence[str]) -> None:
        """These parameters are behind this verdict too."""
        key = (verdict.cause, verdict.node, verdict.why if verdict.node is None else "")
        place = self._by_verdict.setdefault(key, Place(verdict, []))
        if place.verdict.why == "zeros-out" and verdict.why == "flat":
            place.verdict = verdict  # that it passes nothing on says more than that it gives zeros
        place.behind.extend(name for name in names if name not in place.behind)

    def locate(self, calls: Calls, values: Values, reach: Reach, *, satisfied: bool) -> None:
        """Say where each is, and merge what is at one place.

        ``satisfied`` is whether the loss is zero: there is nothing left to learn then.
        """
        listed = list(self._by_verdict.values())
        nodes = [place.verdict.node for place in listed if place.verdict.node is not None]
        makers = dict(zip(nodes, calls.makers(nodes), strict=True))
        merged: dict[object, Place] = {}
        for place in listed:
            node = place.verdict.node
            made = makers.get(node) if node is not None else None
            if node is not None:
                place.location = location(node) or location(reach.around.get(node, node))
            if made is not None:
                place.module, place.call = made
            seen: Seen | None = None if node is None else values.of.get(node)
            hinge = satisfied and made is None and node is not None and _is_hinge(node, reach)
            place.verdict = verdict = _placed(place.verdict, made is not None, seen, hinge)
            if verdict.why == "module-hook":
                place.location = _hook_at(self.model, place.module)
            place.said = message(verdict, place.location, seen)
            first = merged.setdefault(self._key(place), place)
            if first is not place:
                first.behind += [name for name in place.behind if name not in first.behind]
        self.found = _by_names(merged.values())

    def _key(self, place: Place) -> object:
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


def _placed(verdict: Verdict, inside: bool, seen: Seen | None, hinge: bool) -> Verdict:
    """What a verdict means at its place: a module, or the loss and what else is outside of all."""
    if verdict.why == "clipped" and not inside:
        return replace(verdict, cause="masked")  # a ratio that is clipped, as PPO does
    if verdict.why == "flat" and hinge:
        return replace(verdict, cause=None, why="satisfied")
    if verdict.why == "mask" and seen is not None and seen.dropped:
        return replace(verdict, why="dropout")
    return verdict


def _is_hinge(node: Node, reach: Reach) -> bool:
    """Whether a loss is nothing but the mean or the sum of what this operation gives."""
    if op(node) not in _HINGES:
        return False
    while following := reach.consumers(node):
        node = following[0]
        if len(following) > 1 or op(node) not in _REDUCING:
            return False
    return True


def _hook_at(model: nn.Module, module: str | None) -> str | None:
    """The line of the one hook that a module has in backward."""
    owner = None if module is None else model.get_submodule(module)
    hooks = [] if owner is None else [*owner._backward_hooks.values(), *_before(owner)]
    code = getattr(hooks[0], "__code__", None) if len(hooks) == 1 else None
    return None if code is None else f"{shown(code.co_filename)}:{code.co_firstlineno}"


def _before(module: nn.Module) -> list[Callable[..., Any]]:
    return list(module._backward_pre_hooks.values())


def _by_names(places: Iterable[Place]) -> list[Place]:
    """One place for all that ends the same parameters' gradients: the mildest, which tells all.

    A gradient that comes by one way is enough.
    """
    by_names: dict[frozenset[str], list[Place]] = {}
    for place in _by_lines(places):
        by_names.setdefault(frozenset(place.behind), []).append(place)
    for alike in by_names.values():
        alike.sort(key=lambda place: _MILD.get(place.verdict.cause, len(_MILD)))
        for other in alike[1:]:
            alike[0].said += f" Another way to the same ends too: {other.said}"
    return [alike[0] for alike in by_names.values()]


def _by_lines(places: Iterable[Place]) -> list[Place]:
    """One place for all modules that end gradients of the same parameters at one line, as the
    heads of a detector do."""
    kept: list[Place] = []
    for place in places:
        for first in kept:
            same = (first.verdict.cause, first.location) == (place.verdict.cause, place.location)
            if same and place.location and not {*first.behind}.isdisjoint(place.behind):
                first.behind += [name for name in place.behind if name not in first.behind]
                if place.module is not None and place.module != first.module:
                    first.said += f" So it is in `{place.module or 'the model itself'}`."
                break
        else:
            kept.append(place)
    return kept
