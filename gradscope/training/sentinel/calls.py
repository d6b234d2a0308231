"""A call of a trained model as it began, so that it can be run again at the end of its step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.calls import sequence_number
from gradscope.capture.graph import Edge, Span
from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.explain.non_finite.levels import level
from gradscope.explain.shared.frames import is_hidden
from gradscope.explain.shared.tensors import version_of
from gradscope.nesting import find, replaced
from gradscope.training.sentinel.habits import Habits, PutBack

_PLAIN = (int, float, str, type(None))


@dataclass(slots=True)
class RecordedCall:
    """What a call was given, and what was around it as it began.

    Attributes:
        name: of the model, as the script has it.
        given: the tensors among the arguments that it was given, and their versions.
        before: what puts the surroundings back as they were, part by part.
        autocast: the kinds of device that it was on for, with the dtype.
        line: of the script, from where it was called.
        weights: the version of a parameter, by which it is seen that they have moved.
        span: the nodes that it made, once it has returned.
        edges: where its results enter the graph, None for one that does not.
        results: the results themselves, for as long as the script holds them.
        arrived: the gradients for the outputs of each node that made a result, by backward.
        copied: the arguments are copies, which nobody writes to.
        returned: it ran to its end.
        level: the worst among its results, where that is known.
        carried: it is of the step before.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    habits: Habits
    given: list[tuple[torch.Tensor, int]]
    before: list[PutBack]
    autocast: list[tuple[str, torch.dtype]]
    line: tuple[str, int] | None
    weights: int
    start: int
    span: Span | None = None
    edges: list[Edge | None] = field(default_factory=list)
    results: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    arrived: dict[int, list[tuple[torch.Tensor | None, ...]]] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    copied: bool = False
    returned: bool = False
    level: int | None = None
    carried: bool = False

    @property
    def overwritten(self) -> bool:
        """Whether an argument was written to since."""
        return any(version_of(tensor) != version for tensor, version in self.given)

    @property
    def moved(self) -> bool:
        """Whether the weights are others by now."""
        return self.weights != self.habits.weights_version()

    @property
    def repeatable(self) -> bool:
        """Whether it can run in this process alone."""
        return not any(_needs_others(module) for module in self.module.modules())

    @property
    def waits(self) -> bool:
        """Whether a backward may still come to it."""
        return not self.arrived and any(result() is not None for result in self.results)

    @property
    def given_finite(self) -> bool:
        """Whether the gradients that arrived are finite; False where none did."""
        arrived = [g for several in self.arrived.values() for each in several for g in each]
        return bool(arrived) and not any(level(g) for g in arrived if g is not None)

    def alive(self) -> list[torch.Tensor] | None:
        """The results, if the script holds them all as they were."""
        results = [result() for result in self.results]
        found = [result for result in results if result is not None]
        if len(found) < len(results) or not self.returned:
            return None
        edges = [None if t.grad_fn is None else (t.grad_fn, t.output_nr) for t in found]
        return found if edges == self.edges else None

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Random states, modes, buffers and autocast as they were at its entry.

        Only autocast is put back after the block: the rest is for ``kept_as_found`` around it.
        """
        for put_back in self.before:
            put_back()
        with ExitStack() as autocast:
            for device, dtype in self.autocast:
                # Without the cache, in which whoever is around would find casts of this run.
                autocast.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            yield

    def ended(self, output: Any) -> None:
        """It returned: from now on the gradients of its results are listened to."""
        self.returned = True
        self.span = Span(self.start, sequence_number(), -1)
        self.habits.learn(self.overwritten)
        if self.copied:
            self.given.clear()
        nodes: dict[Node, int] = {}
        for tensor in tensors_of((output,)):
            self.results.append(weakref.ref(tensor))
            node = tensor.grad_fn
            self.edges.append(None if node is None else (node, tensor.output_nr))
            if node is None:
                continue
            if node not in nodes:
                nodes[node] = len(nodes)
                self.handles.append(hook_node_before(node, partial(self._arrive, nodes[node])))

    def _arrive(self, number: int, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.arrived.setdefault(number, []).append(gradients)

    def release(self) -> None:
        """Let go of the graph."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.edges.clear()


def began(
    name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], habits: Habits
) -> RecordedCall:
    """A call that begins now."""
    given = [(t, version_of(t)) for t in tensors_of((*args, *kwargs.values()))]
    copied = habits.writes_arguments
    args, kwargs = cloned(args, kwargs) if copied else (args, dict(kwargs))
    call = RecordedCall(
        name,
        module,
        args,
        kwargs,
        habits,
        given,
        habits.snapshot(),
        _autocast(),
        _line(),
        habits.weights_version(),
        sequence_number(),
    )
    call.copied = copied
    return call


def cloned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The same arguments on tensors of their own, which are leaves."""

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    both: tuple[Any, Any] = replaced((args, kwargs), torch.Tensor, clone)
    return both


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors of arguments or results; those of the plain kinds at little cost."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif not isinstance(value, _PLAIN):
            found += (tensor for _, tensor in find(value, torch.Tensor))
    return found


def _line() -> tuple[str, int] | None:
    """The innermost line that is not PyTorch's or gradscope's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _autocast() -> list[tuple[str, torch.dtype]]:
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


def _needs_others(module: nn.Module) -> bool:
    """Whether its forward waits for other processes."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return bool(kinds & {"SyncBatchNorm", "FullyShardedDataParallel", "FSDPModule"})
