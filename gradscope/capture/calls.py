"""Calls of modules: which of them run, their numbers and nodes, and their records so far."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradscope.capture.frontier import NOTE, ObservedTensor, between
from gradscope.capture.gradients import GradientHooks
from gradscope.capture.graph import Edge, Span, edge_of, walk
from gradscope.capture.hooks import hooked
from gradscope.capture.measurements import version
from gradscope.nesting import find
from gradscope.patterns import Named

#: Cheap check, made at each call, for autocast on any kind of device.
any_autocast = torch._C._is_any_autocast_enabled


def autocast_dtypes() -> list[tuple[str, torch.dtype]]:
    """Return the device types with autocast on, and the dtype of each."""
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


def autocast_name(module: nn.Module) -> str | None:
    """Return autocast's dtype for the device of the module's parameters, such as ``bfloat16``; None
    if it is off."""
    first = next(module.parameters(), None)
    wanted = "cpu" if first is None else first.device.type
    for device, dtype in autocast_dtypes():
        if device == wanted:
            return str(dtype).removeprefix("torch.")
    return None


def call_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a call: positional arguments by number, keyword arguments by name."""
    yield from find(args, torch.Tensor)
    yield from find(kwargs, torch.Tensor)


def sequence_number() -> int:
    """Return the sequence number of this thread's next autograd node."""
    return torch._C._autograd._get_sequence_nr()


def in_backward() -> bool:
    """Return True if this thread runs a backward; a forward is then a recomputation."""
    return torch._C._current_graph_task_id() != -1


@dataclass(slots=True, eq=False)
class ModuleCall:
    """One execution of a module's forward, with the autograd nodes from ``start`` up to ``end``."""

    module: nn.Module
    name: str
    number: int
    recomputed: bool
    parent: int
    start: int
    end: int | None = None


class ModuleCalls:
    """The calls of some modules in order, running calls included.

    A recomputation by a checkpoint counts as the call that it repeats. A recorder uses
    ``CallStack`` instead, because its modules may call themselves or run in several threads.

    Args:
        names: the names of the modules.
    """

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names = names
        self._counts: Counter[nn.Module] = Counter()
        self._calls: list[ModuleCall] = []
        self._open: list[int] = []

    def begin(self, module: nn.Module) -> ModuleCall:
        """Note that a module's forward begins."""
        recomputed = in_backward()
        number = self._counts[module]
        if recomputed:
            number = max(0, number - 1)
        else:
            self._counts[module] += 1
        self._drop_recomputed()
        name, parent = self._names.get(module, ""), self._open[-1] if self._open else -1
        self._open.append(len(self._calls))
        self._calls.append(ModuleCall(module, name, number, recomputed, parent, sequence_number()))
        return self._calls[-1]

    def end(self, module: nn.Module) -> ModuleCall | None:
        """Return the call of a module that has returned; also end calls inside it that raised."""
        if self.innermost(module) is None:
            return None
        while True:
            call = self._calls[self._open.pop()]
            call.end = sequence_number()
            if call.module is module:
                return call

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: calls ``begin``."""
        self.begin(module)

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Forward hook: calls ``end``."""
        self.end(module)

    @contextmanager
    def observed(
        self,
        modules: Iterable[nn.Module],
        before: Callable[[ModuleCall, tuple[Any, ...], dict[str, Any]], Any] | None = None,
        after: Callable[[ModuleCall, Any], Any] | None = None,
    ) -> Iterator[None]:
        """Note the calls of these modules in the block, apart from scripted ones.

        ``before`` and ``after`` are not called for a recomputation. A result other than None
        replaces the arguments, or the output.

        Args:
            modules: those to follow.
            before: gets each call as it begins, with its arguments.
            after: gets each call as it returns, with its output.
        """

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = self.begin(module)
            return None if before is None or call.recomputed else before(call, args, kwargs)

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            call = self.end(module)
            return None if after is None or call is None or call.recomputed else after(call, output)

        scripted = torch.jit.ScriptModule
        with hooked([m for m in modules if not isinstance(m, scripted)], enter, leave):
            yield

    def around(self, call: ModuleCall) -> ModuleCall | None:
        """Return the call that made this one; None for an outermost call."""
        return self._calls[call.parent] if call.parent >= 0 else None

    def innermost(self, module: nn.Module | None = None) -> ModuleCall | None:
        """Return the innermost running call, of any module or of this one."""
        self._drop_recomputed()
        for index in reversed(self._open):
            if module is None or self._calls[index].module is module:
                return self._calls[index]
        return None

    def _drop_recomputed(self) -> None:
        """Drop recomputed calls after backward; a checkpoint may stop them early."""
        while self._open and self._calls[self._open[-1]].recomputed and not in_backward():
            self._open.pop()


@dataclass(slots=True)
class Call:
    """One execution of one module's forward, until its record is complete."""

    index: int
    module: nn.Module
    named: Named
    number: int
    parent: int
    start: int
    selected: bool
    training: bool
    end: int | None = None  # None while it runs
    returned: bool = False
    notes: list[str] = field(default_factory=list)
    inputs: list[ObservedTensor] = field(default_factory=list)
    outputs: list[ObservedTensor] = field(default_factory=list)
    arguments: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # while it runs
    saved_bytes: int | None = None

    def note(self, text: str) -> None:
        """Remember a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class CallStack:
    """The calls that are running, in each thread.

    The Python frame that runs a call's hooks identifies the call, because a module may call itself.
    A call may also never return, because its error was caught.
    """

    def __init__(self) -> None:
        self._threads: dict[int, list[tuple[FrameType, Call]]] = {}

    def enter(self, frame: FrameType, call: Call) -> None:
        """Note that ``call`` begins in ``frame``; ``innermost`` of the same frame is the call
        around it."""
        self._own().append((frame, call))

    def innermost(self, frame: FrameType) -> Call | None:
        """Return the call around ``frame``; close abandoned calls."""
        stack = self._own()
        while stack and not _runs_inside(frame, stack[-1][0]):
            _close(stack.pop()[1])
        return stack[-1][1] if stack else None

    def leave(self, frame: FrameType) -> Call | None:
        """Return the call that began in ``frame``, which returns now; None without one."""
        stack = self._own()
        if not any(begun is frame for begun, _ in reversed(stack)):
            return None
        while stack[-1][0] is not frame:
            _close(stack.pop()[1])
        call = stack.pop()[1]
        _close(call)
        call.returned = True
        return call

    def abandon(self) -> list[Call]:
        """Close all running calls, outermost first, and release their frames."""
        left = [call for stack in self._threads.values() for _, call in stack]
        for call in left:
            _close(call)
        self._threads.clear()
        return left

    def _own(self) -> list[tuple[FrameType, Call]]:
        return self._threads.setdefault(threading.get_ident(), [])


def _runs_inside(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is outer


def _close(call: Call) -> None:
    if call.end is None:
        call.end = sequence_number()


#: The node of a reentrant checkpoint.
CHECKPOINT = "CheckpointFunctionBackward"


@dataclass(slots=True)
class _Recomputed:
    original: Call
    start: int
    span: int
    end: int = 0
    inputs: list[tuple[ObservedTensor, Edge]] = field(default_factory=list)
    arguments: list[tuple[ObservedTensor, torch.Tensor, int]] = field(default_factory=list)


def follow_checkpoint(
    node: Any,
    joined: Callable[[list[GradientEdge], dict[int, tuple[Node, int]]], None],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[[], None]:
    """Report the graph that a reentrant checkpoint builds when it runs its function again.

    Args:
        node: the node of the checkpoint; other nodes are ignored.
        joined: gets the edges of the function's results, and for each argument (a detached
            leaf) the edge where its gradient continues, by the leaf's ``id``.
        around: the context in which the function runs.

    Returns:
        A function that ends the reports.
    """
    original = getattr(node, "run_function", None)
    if type(node).__name__ != CHECKPOINT or original is None:
        return lambda: None

    def run_function(*inputs: Any) -> Any:
        with around():
            outputs = original(*inputs)
        tensors = [tensor for _, tensor in find(outputs, torch.Tensor) if tensor.requires_grad]
        given = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        edges = zip(given, node.next_functions, strict=False)
        outer = {id(tensor): edge for tensor, edge in edges if edge[0] is not None}
        joined([get_gradient_edge(tensor) for tensor in tensors], outer)
        return outputs

    node.run_function = run_function
    return lambda: setattr(node, "run_function", original)


class Recomputation:
    """Matches calls that run inside backward to the calls of the first pass."""

    def __init__(self, gradient_hooks: GradientHooks) -> None:
        self._gradient_hooks = gradient_hooks
        # A reentrant checkpoint's node is made just before its first pass. So the calls of that
        # pass are the calls without gradients with the sequence number after the node's, in order.
        self._ungraphed: list[tuple[int, Call]] = []
        self._cursors: dict[tuple[int, int], int] = {}
        self._open: list[_Recomputed] = []
        self._returned: list[_Recomputed] = []
        self._spans: list[tuple[int, Span]] = []

    def note_ungraphed(self, call: Call) -> None:
        """Note a call without gradients; it may be a checkpoint's first pass."""
        insort(self._ungraphed, (sequence_number(), call), key=lambda entry: entry[0])

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the entry of a module inside backward."""
        original = self._match(module)
        if original is None:
            return
        if not torch.is_grad_enabled():  # a checkpoint within a checkpoint: its own first pass
            self.note_ungraphed(original)
        repeated = _Recomputed(original, sequence_number(), len(self._spans))
        parent = self._open[-1].span if self._open else -1
        self._spans.append((original.index, Span(repeated.start, sys.maxsize, parent)))
        self._open.append(repeated)
        original.note("recomputed")
        records = {observed.path: observed for observed in original.inputs}
        for path, tensor in call_tensors(args, kwargs):
            if tensor.requires_grad and path in records:
                records[path].requires_grad = True
                repeated.inputs.append((records[path], edge_of(tensor)))
                repeated.arguments.append((records[path], tensor, version(tensor)))

    def take_spans(self) -> list[tuple[int, Span]]:
        """Return the recomputed calls since the last request: the index of the first pass's call,
        and its nodes.

        Call it only while no recomputation runs.
        """
        spans, self._spans = self._spans, []
        return spans

    def _match(self, module: nn.Module) -> Call | None:
        node = torch._C._current_autograd_node()
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return None
        sequence = node._sequence_nr()
        key = (sequence, torch._C._current_graph_task_id())
        first = bisect_right(self._ungraphed, sequence, key=lambda entry: entry[0])
        for i in range(self._cursors.get(key, first), len(self._ungraphed)):
            call = self._ungraphed[i][1]
            if call.module is module:
                self._cursors[key] = i + 1
                return call
        return None

    def leave(self, module: nn.Module, output: Any) -> None:
        """Note the return of a module inside backward."""
        if not self._open or self._open[-1].original.module is not module:
            return
        repeated = self._open.pop()
        repeated.end = sequence_number()
        index, span = self._spans[repeated.span]
        self._spans[repeated.span] = (index, replace(span, end=repeated.end))
        records = {observed.path: observed for observed in repeated.original.outputs}
        roots = [
            (path, tensor) for path, tensor in find(output, torch.Tensor) if tensor.requires_grad
        ]
        for path, tensor in roots:
            if path not in records:
                continue
            observed = records[path]
            observed.requires_grad = True
            observed.grad_fn = None if tensor.grad_fn is None else type(tensor.grad_fn).__name__
            observed.slot = observed.slot or self._gradient_hooks.slot()
            self._gradient_hooks.on_tensor(tensor, observed.slot)
            for given, argument, before in repeated.arguments:
                if argument is tensor and version(tensor) == before:
                    given.slot = observed.slot
                    repeated.original.note("pass-through")
        self._note_views(repeated)
        self._returned.append(repeated)
        if not self._open:
            self._assign_input_slots([edge_of(tensor) for _, tensor in roots], repeated.start)

    def _note_views(self, repeated: _Recomputed) -> None:
        """Note inputs that were written to through a view: they have lost their node and their
        gradient."""
        for observed, tensor, before in repeated.arguments:
            if tensor._is_view() and version(tensor) != before:
                observed.slot = self._gradient_hooks.slot()
                observed.slot.note = NOTE
        repeated.arguments.clear()

    def _assign_input_slots(self, roots: list[Edge], start: int) -> None:
        """Assign the slots at the outermost call, once for it and all calls inside."""
        wanted = {edge for repeated in self._returned for _, edge in repeated.inputs}
        found = walk(roots, wanted, since=start)
        for repeated in self._returned:
            for observed, edge in repeated.inputs:
                consumers = between(found.consumers.get(edge, []), repeated.start, repeated.end)
                if not consumers or (observed.slot and observed.slot.note):
                    continue
                observed.slot = observed.slot or self._gradient_hooks.slot(len(consumers))
                for consumer in consumers:
                    self._gradient_hooks.on_node(consumer.node, consumer.position, observed.slot)
        self._returned.clear()
