"""One backward, followed through the autograd graph: what reaches each node, what each one keeps,
and the graphs that reentrant checkpoints build on the way."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from gradscope.capture.graph import (
    LEAF,
    Span,
    dense_parts,
    is_python_number,
    saved_tensors,
    storage_key,
)
from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.capture.nodes import Label, describe, ordered
from gradscope.capture.stats import Measured, measure, resolve
from gradscope.nesting import find
from gradscope.records.graph import GraphNode, SavedTensor
from gradscope.records.tensors import TensorStats

#: The node of torch's reentrant checkpoint, which runs its function again in backward.
_CHECKPOINT = "CheckpointFunctionBackward"


@dataclass(slots=True)
class _NodeGradients:
    """The gradients that reached one node: the latest ones' numbers, and how often any came."""

    times: int = 0
    measured: list[Measured] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What a trace has to know of the run.

    Args:
        names: names of parameters and inputs, by ``id`` of the leaf tensor.
        recomputed: the spans of what a checkpoint has run again just now, and their labels.
        locate: the user's line in a node's stack, a list of formatted frames.
        excluded: tensors that cost nothing more when they are saved.
        stacks: entered where a checkpoint runs its function again, so that its nodes keep theirs.
        unreadable: somebody's hooks may be before saved tensors, and nobody can tell where.
    """

    names: Mapping[int, str]
    recomputed: Callable[[], tuple[Sequence[Span], Label]]
    locate: Callable[[Sequence[str]], str | None]
    stacks: Callable[[], AbstractContextManager[None]] = nullcontext
    excluded: Iterable[torch.Tensor] = ()
    unreadable: bool = False


class Trace:
    """The graph upstream of one node, from after forward to after backward."""

    def __init__(
        self, root: Node, spans: Sequence[Span], label: Label, context: TraceContext
    ) -> None:
        self._context = context
        self._excluded = {storage_key(part) for t in context.excluded for part in dense_parts(t)}
        self._numbers: dict[Node, int] = {}
        self._records: list[GraphNode] = []
        self._gradients: list[_NodeGradients] = []
        self._storages: dict[int, int] = {}
        self._bytes: list[int] = []
        self._inner: dict[int, tuple[tuple[int, int], ...]] = {}
        self._joins: dict[int, tuple[int, int]] = {}
        self._handles: list[Handle] = []
        self._wrapped: list[tuple[Any, Callable[..., Any]]] = []
        self._add([root], spans, label)

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors whose ``.grad`` backward will write."""
        return [node.variable for node in self._numbers if isinstance(node, LEAF)]

    @property
    def unreached(self) -> list[str]:
        """The named leaves that no gradient has come to by now."""
        leaves = ((n, self._records[i].name) for n, i in self._numbers.items())
        return [
            name
            for node, name in leaves
            if name is not None and not self._gradients[self._numbers[node]].times
        ]

    @property
    def saved_bytes(self) -> int | None:
        """What all nodes keep, each storage once; None where some could not be read."""
        if any(record.saved_bytes is None for record in self._records):
            return None
        return sum(self._bytes)

    def release(self) -> list[Node]:
        """Remove every hook; what was noted stays. The nodes are the caller's to let go."""
        for handle in self._handles:
            handle.remove()
        for node, original in self._wrapped:
            node.run_function = original
        self._handles.clear()
        self._wrapped.clear()
        nodes = list(self._numbers)
        self._numbers.clear()
        return nodes

    def nodes(self) -> tuple[GraphNode, ...]:
        """The records with what has arrived by now, each before those that it leads to."""
        self._remeasure_leaves()
        done = resolve(item for received in self._gradients for item in received.measured)
        complete = []
        for record, received in zip(self._records, self._gradients, strict=True):
            norm, nonfinite = _together([done[id(item)] for item in received.measured])
            changes: dict[str, Any] = {"grad_norm": norm, "grad_nonfinite": nonfinite}
            if record.id in self._inner:
                changes["inner"] = self._inner[record.id]
            if record.id in self._joins:
                changes |= {"to": (self._joins[record.id],), "kind": "function"}
            complete.append(replace(record, **changes))
        return tuple(_sorted(complete) if self._inner else complete)

    def _remeasure_leaves(self) -> None:
        """A leaf that several backwards reached: a checkpoint's own and the one around it."""
        for node, number in self._numbers.items():
            if self._gradients[number].times > 1 and isinstance(node, LEAF):
                gradient = node.variable.grad
                if gradient is not None:
                    self._gradients[number].measured = [measure(gradient)]

    def _add(self, roots: Sequence[Node], spans: Sequence[Span], label: Label) -> list[Node]:
        """Read the nodes that are new, and hook them."""
        new = [node for node in ordered(roots) if node not in self._numbers]
        known = len(self._numbers)
        self._numbers.update((node, known + i) for i, node in enumerate(new))
        described = describe(new, spans, label, self._context.names, numbers=self._numbers)
        for node, record in zip(new, described, strict=True):
            received = _NodeGradients()
            self._records.append(self._completed(node, record))
            self._gradients.append(received)
            self._handles.append(hook_node_before(node, _listener(received)))
            if type(node).__name__ == _CHECKPOINT and hasattr(node, "run_function"):
                self._follow(node, record)
        return new

    # ---------------------------------------------------------------- what a node keeps

    def _completed(self, node: Node, record: GraphNode) -> GraphNode:
        metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # torch types a method
        stack = metadata.get("traceback_")  # there under anomaly mode
        location = self._context.locate(stack) if stack else None
        saved = self._saved(node)
        if saved is None:
            return replace(record, location=location)
        costs = {tensor.storage: tensor.bytes for tensor in saved}
        return replace(
            record, saved=tuple(saved), saved_bytes=sum(costs.values()), location=location
        )

    def _saved(self, node: Node) -> list[SavedTensor] | None:
        if isinstance(node, LEAF):
            return []
        if self._context.unreadable:
            return None
        try:
            tensors = saved_tensors(node)
        except RuntimeError:  # written to in place since, or with other hooks
            return None
        return [
            self._saved_tensor(name, tensor, part)
            for name, tensor in tensors
            if not is_python_number(tensor)
            for part in dense_parts(tensor)
        ]

    def _saved_tensor(self, name: str, tensor: torch.Tensor, part: torch.Tensor) -> SavedTensor:
        key = storage_key(part)
        if key not in self._storages:
            self._storages[key] = len(self._bytes)
            free = key in self._excluded
            self._bytes.append(0 if free else part.untyped_storage().nbytes())
        number = self._storages[key]
        shape = tuple(int(n) for n in tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return SavedTensor(name, shape, dtype, self._bytes[number], number)

    # ---------------------------------------------------------------- checkpoints

    def _follow(self, node: Any, record: GraphNode) -> None:
        """When the checkpoint runs its function again, the graph of that run is joined in."""
        original = node.run_function

        def run_function(*inputs: Any) -> Any:
            with self._context.stacks():
                outputs = original(*inputs)
            self._join(self._records[record.id], inputs, outputs)
            return outputs

        node.run_function = run_function
        self._wrapped.append((node, original))

    def _join(self, record: GraphNode, inputs: Sequence[Any], outputs: Any) -> None:
        roots = [
            get_gradient_edge(tensor)
            for _, tensor in find(outputs, torch.Tensor)
            if tensor.requires_grad
        ]
        if not roots:
            return
        spans, label = self._context.recomputed()
        known = len(self._records)
        new = self._add([edge.node for edge in roots], spans, label)
        for number in range(known, len(self._records)):
            made = self._records[number]
            if made.module is None and made.kind == "function":
                # Outside every module that ran again, but within the one that the checkpoint is in.
                self._records[number] = replace(made, module=record.module, call=record.call)
        self._inner[record.id] = tuple((self._numbers[edge.node], edge.output_nr) for edge in roots)
        # The function's own arguments are detached: each leads on to where it was detached from.
        given = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        outer = {id(t): edge for t, edge in zip(given, record.to, strict=False) if edge}
        for node in new:
            if isinstance(node, LEAF) and id(node.variable) in outer:
                self._joins[self._numbers[node]] = outer[id(node.variable)]


def _listener(received: _NodeGradients) -> Callable[..., None]:
    # Holds the numbers, not the node: a node that its own hook holds would never be freed.
    def read(gradients: tuple[torch.Tensor | None, ...]) -> None:
        arrived = [gradient for gradient in gradients if gradient is not None]
        if not arrived:
            return
        received.times += 1
        # What cannot be reduced must not stop the user's backward; its node has no norm.
        with suppress(RuntimeError, NotImplementedError, TypeError):
            received.measured = [measure(gradient.detach()) for gradient in arrived]

    return read


def _together(gradients: Sequence[TensorStats]) -> tuple[float | None, int]:
    """The norm over all of a node's outputs, and how many elements are NaN or Inf."""
    # An empty gradient is a gradient, and the norm of nothing is 0.
    found = [stats.norm if stats.numel else 0.0 for stats in gradients]
    norms = [norm for norm in found if norm is not None]
    nonfinite = sum((stats.nan or 0) + (stats.inf or 0) for stats in gradients)
    return (math.hypot(*norms) if norms else None), nonfinite


def _sorted(records: Sequence[GraphNode]) -> list[GraphNode]:
    """In topological order again, and numbered so, once checkpoints' graphs were joined in."""
    onward = [[edge[0] for edge in (*r.to, *r.inner) if edge] for r in records]
    waiting = Counter(number for numbers in onward for number in numbers)
    ready = [0]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for following in onward[number]:
            waiting[following] -= 1
            if not waiting[following]:
                heapq.heappush(ready, following)
    place = {number: i for i, number in enumerate(order)}
    return [
        replace(
            records[number],
            id=i,
            to=tuple(edge and (place[edge[0]], edge[1]) for edge in records[number].to),
            inner=tuple((place[to], position) for to, position in records[number].inner),
        )
        for i, number in enumerate(order)
    ]
