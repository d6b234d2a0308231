"""Traces a second run: which operation saved a tensor, which wrote to it, and which backward freed
it.

A mode gets the operations in the order of the user's code, and matches the graph's nodes to them.
It uses no hook on saved tensors, because autograd would then miss the write in question.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils.weak import WeakTensorKeyDictionary

from gradscope.capture.calls import sequence_number
from gradscope.capture.graph import LEAF, free_nodes, saved_tensors
from gradscope.capture.measurements import version
from gradscope.capture.names import buffer_names, first_names
from gradscope.capture.nodes import ordered
from gradscope.errors import message_of
from gradscope.explain.errors.explanation import FailedOperation, Operand, operand
from gradscope.explain.errors.read_traceback import (
    ModelNames,
    as_called,
    base_of,
    first_held,
    local,
)
from gradscope.explain.shared.frames import CallSite, outwards
from gradscope.explain.shared.operations import Trait, by_function, function_name
from gradscope.explain.shared.tracing_modes import ModuleCalls, TracedCall, memory_of
from gradscope.nesting import find


@dataclass(frozen=True, slots=True)
class Event:
    """An operation that ran; ``epoch`` is the number of backwards before it."""

    op: str
    site: CallSite
    epoch: int = 0
    step: str = ""
    doer: str | None = None  # the optimizer whose step it belongs to
    target: str | None = None  # what the user calls the tensor that it wrote to, or a part of
    full: tuple[int, ...] = ()  # the shape of that tensor
    switch: bool = False  # whether a module built with ``inplace=True`` did it


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a node saved: the address of its memory, and its version at that time."""

    name: str
    memory: int
    version: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """An in-place write; the tensor's version after it is ``after``."""

    event: Event
    after: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CarriedTensor:
    """A tensor whose graph was made before a backward, and that was used after it."""

    node: Node
    text: str | None
    attribute: bool
    several: type | None  # that of the attribute, where it holds more than this tensor
    single: bool  # one number: a loss
    event: Event


@dataclass(slots=True)
class BackwardRun:
    """A run of backward: the nodes upstream of its roots, in the engine's order."""

    event: Event
    roots: list[Node]
    root: torch.Tensor | None = None
    nodes: list[Node] = field(default_factory=list)


_RUNS = ("backward", "grad")


class ErrorTracer:
    """Traces one run that is expected to raise.

    Args:
        model: names modules, parameters and buffers.
        last: the code of the function that starts the run: the frames around it are not the user's.
    """

    def __init__(self, model: nn.Module, last: CodeType) -> None:
        self.names = ModelNames(model)
        self.calls = ModuleCalls(model, last)
        self.step = ""
        self.made: dict[Node, Event] = {}
        self.kept: dict[Node, list[SavedTensor]] = {}
        self.writes: dict[int, list[Write]] = {}
        self.freed: dict[Node, BackwardRun] = {}
        self.applied: dict[object, CallSite] = {}  # where the user's own functions were
        self.carried: dict[Node, CarriedTensor] = {}
        self.flattened: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.backwards: list[BackwardRun] = []
        self.failing: BackwardRun | None = None
        self._failed: tuple[BaseException, FailedOperation] | None = None
        self._memory = {memory_of(t): name for name, t in buffer_names(model)}
        self._memory |= {memory_of(t): name for name, t in first_names(model)}
        self._memory.pop(0, None)
        # A tensor from `.data` counts its versions separately: backward notices no write to it.
        self._apart: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()
        self._owned = {id(p) for p in model.parameters()}
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def close(self) -> None:
        """Restore the gradients of leaves that are not parameters, and free the graph."""
        for leaf, gradient in self._gradients:
            leaf.grad = gradient
        nodes = list(self.made)
        for held in (self.made, self.kept, self.freed, self.applied, self.carried, self.backwards):
            held.clear()
        self.failing = self._failed = None
        free_nodes(nodes)

    def failed(self, failure: BaseException) -> FailedOperation | None:
        """Return the operation that raised ``failure`` or its cause."""
        chain: list[BaseException] = []
        one: BaseException | None = failure
        while one is not None and one not in chain:
            chain.append(one)
            one = one.__cause__ or one.__context__
        if self._failed is None or not any(self._failed[0] is one for one in chain):
            return None
        return self._failed[1]

    def maker(self, tensor: torch.Tensor) -> str | None:
        """Return the module that made a tensor, if known."""
        made = self.made.get(tensor.grad_fn) if tensor.grad_fn is not None else None
        return made.site.module if made is not None else None

    def owner(self, kept: SavedTensor) -> str | None:
        """Return the parameter or buffer that shares its memory with a saved tensor."""
        return self._memory.get(kept.memory)

    def run(self, call: TracedCall) -> Any:
        """Run the operation, then note the tensors that it made, saved and wrote."""
        name, args = function_name(call.function), call.args
        operation = by_function(name)
        if operation.has(Trait.ASKS) or name.startswith((".", "_record_function")):
            result = call.run()
            if name == ".data" and isinstance(result, torch.Tensor):
                self._apart[result] = True
            return result
        tensors = _tensors((args, call.kwargs))
        if not torch.is_grad_enabled():
            self._applied()
        if name in _RUNS and tensors:
            return self._backward(name, tensors, call)
        self._arriving(tensors)
        versions = [version(tensor) for tensor in tensors]
        number = sequence_number()
        try:
            result = call.run()
        except Exception as failure:
            if self._failed is None or self._failed[0] is not failure:
                self._failed = (failure, self._operation_of(name, tensors, args))
            raise
        written = [t for t, v in zip(tensors, versions, strict=True) if version(t) != v and v >= 0]
        separate = {memory_of(t) for t in tensors if t in self._apart}
        if separate:
            self._apart.update((t, True) for t in _tensors(result) if memory_of(t) in separate)
            written = [t for t in written if t not in self._apart]
        if not written and sequence_number() == number:
            return result
        event = self._event(name, written)
        for tensor in written:
            write = Write(event, version(tensor), tuple(tensor.shape))
            self.writes.setdefault(memory_of(tensor), []).append(write)
        outputs = _tensors(result)
        self._keep([*outputs, *written], event)
        if operation.has(Trait.RESHAPES) and outputs and tensors:
            self.flattened[tuple(outputs[0].shape)] = tuple(tensors[0].shape)
        return result

    def _event(self, name: str, written: list[torch.Tensor] | None = None) -> Event:
        site = self.calls.site()
        doer = target = None
        full: tuple[int, ...] = ()
        if written:
            for frame in outwards(sys._getframe(2), self.calls.last):
                owner = frame.f_locals.get("self")
                if isinstance(owner, torch.optim.Optimizer):
                    doer = type(owner).__name__
            target, full = self._target(written[0])
        running = self.calls.innermost()
        switch = (
            bool(written)
            and running is not None
            and getattr(running.module, "inplace", False) is True
        )
        return Event(name, site, len(self.backwards), self.step, doer, target, full, switch)

    def _arriving(self, tensors: list[torch.Tensor]) -> None:
        """Note nodes without a traced operation, and tensors of an earlier graph."""
        for tensor in tensors:
            node = tensor.grad_fn
            if node is None:
                continue
            if node not in self.made:
                # Made before the run, or by a function of the user's that is no operation.
                self._keep([tensor], Event("", CallSite(), -1 if self._is_old(tensor) else 0))
            made = self.made[node]
            if made.epoch < len(self.backwards) and node not in self.carried:
                held = self.names.attribute(tensor)
                event = self._event("", None)
                text, several = held or (local(tensor, self.calls.last), None)
                if held is None:
                    own, frame = first_held(tensor, self.calls.last)
                    if own is not None and own != text:  # deeper down it goes by another name
                        text, event = own, replace(event, site=self.calls.site(frame))
                single = tensor.numel() == 1
                self.carried[node] = CarriedTensor(
                    node, text, held is not None, several, single, event
                )

    def _applied(self) -> None:
        """Note where a custom autograd function was applied: its ``ctx`` becomes the node."""
        for frame in outwards(sys._getframe(2), self.calls.last):
            context: Any = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
            if isinstance(context, BackwardCFunction) and context not in self.applied:
                self.applied[context] = self.calls.site(frame.f_back)

    def _is_old(self, tensor: torch.Tensor) -> bool:
        return self.names.attribute(tensor) is not None

    def _keep(self, tensors: list[torch.Tensor], event: Event) -> None:
        stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
        while stack:
            node = stack.pop()
            if node in self.made:
                continue
            self.made[node] = event
            if isinstance(node, LEAF):
                self._leaf(node.variable)
                continue
            try:
                saved = saved_tensors(node)
            except RuntimeError:  # with a hook, or freed before this run
                saved = []
            self.kept[node] = [
                SavedTensor(name, memory_of(t), version(t), tuple(t.shape)) for name, t in saved
            ]
            stack.extend(after for after, _ in node.next_functions if after is not None)

    def _leaf(self, leaf: torch.Tensor) -> None:
        if id(leaf) not in self._owned:
            self._owned.add(id(leaf))
            self._gradients.append((leaf, leaf.grad))
            leaf.grad = None

    def _backward(self, name: str, tensors: list[torch.Tensor], call: TracedCall) -> Any:
        kwargs = call.kwargs
        starts = call.args[0] if call.args else kwargs.get("outputs", kwargs.get("tensors"))
        given = _tensors(starts) or tensors[:1]
        roots = [t.grad_fn for t in given if t.grad_fn is not None]
        self._keep(given, Event("", self.calls.site(), len(self.backwards), self.step))
        run = BackwardRun(self._event(name), roots, given[0], ordered(roots) if roots else [])
        try:
            result = call.run()
        except Exception:
            self.failing = run
            raise
        for node in run.nodes:
            if node not in self.freed and _is_freed(node):
                self.freed[node] = run
        run.root, run.nodes = None, []
        self.backwards.append(run)
        if name == "grad":
            self._keep(_tensors(result), run.event)
        return result

    def _target(self, tensor: torch.Tensor) -> tuple[str | None, tuple[int, ...]]:
        """Return the name and shape of a tensor that was written to, or of its base."""
        name = self._memory.get(memory_of(tensor))
        return (name, tuple(tensor.shape)) if name else base_of(tensor, self.calls.last)

    def _operation_of(
        self, name: str, tensors: list[torch.Tensor], args: tuple[Any, ...]
    ) -> FailedOperation:
        def named(tensor: torch.Tensor, text: str | None) -> Operand:
            text = text or self.names.tensors.get(id(tensor))
            return operand(tensor, text, self.maker(tensor))

        return as_called(name, tensors, args, named, self.calls.last)


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Yield every tensor in nested arguments or results, once."""
    return list({id(t): t for _, t in find(tree, torch.Tensor)}.values())


def _is_freed(node: Node) -> bool:
    try:
        saved_tensors(node)
    except RuntimeError as error:
        return "second time" in message_of(error) or "already been freed" in message_of(error)
    return False
