"""Traces one backward through the autograd graph: the gradient and saved tensors of each node, and
the graphs that reentrant checkpoints build meanwhile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from gradscope.capture.calls import follow_checkpoint
from gradscope.capture.graph import (
    LEAF,
    Span,
    dense_parts,
    is_python_number,
    saved_tensors,
    storage_key,
)
from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.capture.nodes import Label, describe, ordered, stack_of, topological
from gradscope.capture.stats import Measured, measure, resolve
from gradscope.records.graph import GraphNode, SavedTensor
from gradscope.records.tensors import TensorStats


@dataclass(slots=True)
class _NodeGradients:
    """The gradients that reached one node: the latest statistics, and the number of arrivals."""

    times: int = 0
    measured: list[Measured] = field(default_factory=list)


class Trace:
    """The graph upstream of one node, from after forward to after backward.

    Args:
        root: the node.
        spans: the spans of calls; ``label`` maps a span's index to a name.
        names: names of parameters and inputs, by ``id`` of the leaf tensor.
        recomputed: returns the spans of the latest recomputation, and their labels.
        locate: finds the user's line in a node's stack of formatted frames.
        stacks: a context for a checkpoint's recomputation, in which nodes keep their stacks.
        excluded: tensors that exist anyway, so saving them needs no more memory.
        unreadable: True if other hooks may change saved tensors at unknown places.
    """

    def __init__(
        self,
        root: Node,
        spans: Sequence[Span],
        label: Label,
        names: Mapping[int, str],
        *,
        recomputed: Callable[[], tuple[Sequence[Span], Label]],
        locate: Callable[[Sequence[str]], str | None],
        stacks: Callable[[], AbstractContextManager[None]] = nullcontext,
        excluded: Iterable[torch.Tensor] = (),
        unreadable: bool = False,
    ) -> None:
        self._names, self._recomputed, self._locate = names, recomputed, locate
        self._stacks, self._unreadable = stacks, unreadable
        self._excluded = {storage_key(part) for t in excluded for part in dense_parts(t)}
        self._numbers: dict[Node, int] = {}
        self._records: list[GraphNode] = []
        self._gradients: list[_NodeGradients] = []
        self._storages: dict[int, int] = {}
        self._bytes: list[int] = []
        self._inner: dict[int, tuple[tuple[int, int], ...]] = {}
        self._joins: dict[int, tuple[int, int]] = {}
        self._handles: list[Handle] = []
        self._restore: list[Callable[[], None]] = []
        self._add([root], spans, label)

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors whose ``.grad`` backward will write."""
        return [node.variable for node in self._numbers if isinstance(node, LEAF)]

    @property
    def unreached(self) -> list[str]:
        """Return the named leaves without a gradient so far."""
        leaves = ((n, self._records[i].name) for n, i in self._numbers.items())
        return [
            name
            for node, name in leaves
            if name is not None and not self._gradients[self._numbers[node]].times
        ]

    @property
    def saved_bytes(self) -> int | None:
        """Return the bytes that all nodes keep, each storage once; None if some could not be
        read."""
        if any(record.saved_bytes is None for record in self._records):
            return None
        return sum(self._bytes)

    def release(self) -> list[Node]:
        """Remove every hook; the records stay. The caller releases the nodes."""
        for handle in self._handles:
            handle.remove()
        for restore in self._restore:
            restore()
        self._handles.clear()
        self._restore.clear()
        nodes = list(self._numbers)
        self._numbers.clear()
        return nodes

    def nodes(self) -> tuple[GraphNode, ...]:
        """Return the records with the gradients so far, in topological order from the root."""
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
        """Measure leaves again that several backwards reached: a checkpoint's, and the outer
        one."""
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
        described = describe(new, spans, label, self._names, numbers=self._numbers)
        for node, record in zip(new, described, strict=True):
            received = _NodeGradients()
            self._records.append(self._completed(node, record))
            self._gradients.append(received)
            self._handles.append(hook_node_before(node, _listener(received)))
            joined = functools.partial(self._join, record.id)
            self._restore.append(follow_checkpoint(node, joined, self._stacks))
        return new

    # ---------------------------------------------------------------- what a node keeps

    def _completed(self, node: Node, record: GraphNode) -> GraphNode:
        stack = stack_of(node)
        location = self._locate(stack) if stack else None
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
        if self._unreadable:
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

    def _join(
        self, checkpoint: int, roots: list[GradientEdge], outer: dict[int, tuple[Node, int]]
    ) -> None:
        """Add the graph of a checkpoint's recomputation to this one."""
        if not roots:
            return
        record = self._records[checkpoint]
        spans, label = self._recomputed()
        known = len(self._records)
        new = self._add([edge.node for edge in roots], spans, label)
        for number in range(known, len(self._records)):
            made = self._records[number]
            if made.module is None and made.kind == "function":
                # The node belongs to no recomputed module, but to the module around the checkpoint.
                self._records[number] = replace(made, module=record.module, call=record.call)
        self._inner[record.id] = tuple((self._numbers[edge.node], edge.output_nr) for edge in roots)
        for node in new:
            if isinstance(node, LEAF) and id(node.variable) in outer:
                producer, position = outer[id(node.variable)]
                self._joins[self._numbers[node]] = self._numbers[producer], position


def _listener(received: _NodeGradients) -> Callable[..., None]:
    # Hold the numbers, not the node: a node is never freed if its own hook holds it.
    def read(gradients: tuple[torch.Tensor | None, ...]) -> None:
        arrived = [gradient for gradient in gradients if gradient is not None]
        if not arrived:
            return
        received.times += 1
        # A tensor that cannot be reduced must not stop the user's backward; its node has no norm.
        with suppress(RuntimeError, NotImplementedError, TypeError):
            received.measured = [measure(gradient.detach()) for gradient in arrived]

    return read


def _together(gradients: Sequence[TensorStats]) -> tuple[float | None, int]:
    """Return the norm over all of a node's outputs, and the number of NaN and Inf."""
    # An empty gradient counts as a gradient, with norm 0.
    found = [stats.norm if stats.numel else 0.0 for stats in gradients]
    norms = [norm for norm in found if norm is not None]
    nonfinite = sum((stats.nan or 0) + (stats.inf or 0) for stats in gradients)
    return (math.hypot(*norms) if norms else None), nonfinite


def _sorted(records: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the nodes in topological order with new numbers, after the graphs of checkpoints were
    added."""
    onward = [[edge[0] for edge in (*r.to, *r.inner) if edge] for r in records]
    order = topological([0], onward.__getitem__, int)
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
