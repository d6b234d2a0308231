"""Activation checkpointing: a recomputation inside backward is not a second call.

A non-reentrant checkpoint builds its graph in the first pass; its second run is ignored. A
reentrant one runs first without a graph: grad_fn and gradients come from the second run, and go
into the records of the first.
"""

from __future__ import annotations

import sys
from bisect import bisect_right, insort
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradscope.capture.calls import Call, call_tensors, sequence_number
from gradscope.capture.frontier import NOTE, ObservedTensor, between
from gradscope.capture.gradients import GradientHooks
from gradscope.capture.graph import Edge, Span, edge_of, walk
from gradscope.capture.measurements import version
from gradscope.nesting import find

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

        Only valid while no recomputation runs.
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
        gradient.
        """
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
