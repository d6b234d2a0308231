"""Measures gradients in backward: each hook reduces its gradient to numbers.

A slot is one gradient that records wait for. Records share a slot if their gradients are the same
tensor: a container that returns its child's output, or an input whose only consumer is inside the
call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from gradscope.capture.graph import LEAF
from gradscope.capture.hooks import Handle, hook_node, hook_tensor, raised_by_a_handler
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import local, placements_of
from gradscope.capture.stats import Measured, measure
from gradscope.errors import first_line

Extract = Callable[[torch.Tensor], torch.Tensor | None]


class GradientCache:
    """Measured gradients: the same unchanged tensor is measured once.

    An addition passes one gradient to both operands, so a residual network has many of them.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[RememberedTensor, int, Measured]] = {}

    def measured(self, gradient: torch.Tensor) -> Measured:
        """Return the statistics of the gradient's present values."""
        if gradient.is_inference():  # such a tensor has no version
            return measure(gradient)
        key, version = id(gradient), gradient._version
        found = self._found.get(key)
        if found is not None and found[0].is_still(gradient) and found[1] == version:
            return found[2]
        measured = measure(gradient)
        self._found[key] = (remembered(gradient), version, measured)
        return measured


@dataclass(slots=True, eq=False)
class GradientSlot:
    """Adds up the parts of one gradient, and measures the sum when the last part has arrived.

    ``parts`` may grow until backward starts. With ``accumulate`` it keeps the sum of several
    backwards, otherwise the latest only. A slot with a ``note`` is unknown and has no numbers.
    """

    parts: int
    _cache: GradientCache
    accumulate: bool = field(kw_only=True)
    note: str | None = None
    differentiated: bool = False  # a gradient of it was itself made part of the graph
    shareable: bool = True  # False where a hook of the user's is between it and the consumer
    _measured: Measured | None = None
    _arrived: int = 0
    _partial: torch.Tensor | None = None
    _total: torch.Tensor | None = None

    @property
    def measured(self) -> Measured | None:
        """Return the gradient's statistics; None if none arrived or it is unknown."""
        return None if self.note else self._measured

    def add(self, gradient: torch.Tensor | None) -> None:
        """Add one part of the gradient; None counts as arrived, and adds nothing."""
        self._arrived += 1
        if gradient is not None:
            before = self._partial
            if before is not None and placements_of(before) != placements_of(gradient):
                # Adding them would need communication between processes.
                self.note = "not measured: its shards are placed differently on the ranks"
            else:
                self._partial = gradient if before is None else _plus(before, gradient)
        if self._arrived >= self.parts:
            self.settle()

    def settle(self) -> None:
        """Measure the sum so far: after the last part, or at the end if a part never arrived."""
        partial, self._partial, self._arrived = self._partial, None, 0
        if partial is None:
            return
        try:
            if self.accumulate:
                # Copy it: autograd may use this tensor as `.grad`, and add the next backward to it.
                kept = local(partial.detach())
                self._total = kept.clone() if self._total is None else _plus(self._total, kept)
                partial = self._total
            self._measured = self._cache.measured(partial)
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            # A gradient that cannot be reduced must not stop the user's backward; a note says so.
            self.note = f"unmeasured: {first_line(error)}"


@torch.no_grad()
def _plus(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    # A dense tensor can add a sparse one only as its right operand.
    return right + left if left.is_sparse and not right.is_sparse else left + right


class GradientHooks:
    """All gradient slots of a run, and the hooks that fill them."""

    def __init__(self, *, accumulate: bool) -> None:
        self.armed = (
            False  # ignore gradients until backward starts: they were computed inside forward
        )
        self._accumulate = accumulate
        self._cache = GradientCache()
        self._slots: list[GradientSlot] = []
        self._handles: list[Handle] = []
        self._histories: list[Node | None] = []
        self._by_node: dict[Node, list[tuple[int, GradientSlot, Extract | None]]] = {}

    def slot(self, parts: int = 1) -> GradientSlot:
        """Return a new slot for that many parts in each backward."""
        slot = GradientSlot(parts, self._cache, accumulate=self._accumulate)
        self._slots.append(slot)
        return slot

    def on_tensor(self, tensor: torch.Tensor, slot: GradientSlot) -> None:
        """Measure the gradient of ``tensor`` at its present version; a later in-place operation
        changes nothing."""
        if tensor._backward_hooks:
            slot.shareable = False

        history = tensor.grad_fn
        leaf, node = history is None, id(history)
        self._histories.append(history)  # keep it, or its Python object and its id would change

        def read(gradient: torch.Tensor | None) -> None:
            # `detach_()` takes a tensor, and its hooks, to another history.
            current = torch._C._current_autograd_node()
            if not (isinstance(current, LEAF) if leaf else id(current) == node):
                return
            if self.armed:
                slot.add(gradient)
            elif torch.is_grad_enabled():  # `create_graph=True`, as in a gradient penalty
                slot.differentiated = True

        self._handles.append(hook_tensor(tensor, read))

    def on_node(
        self, node: Node, position: int, slot: GradientSlot, extract: Extract | None = None
    ) -> None:
        """Measure ``grad_inputs[position]`` of ``node``, cut to its region by ``extract``."""
        readers = self._by_node.get(node)
        if readers is None:
            readers = self._by_node[node] = []
            self._handles.append(hook_node(node, _reader(readers)))
        readers.append((position, slot, extract))

    def settle(self) -> None:
        """Finish every gradient slot with the gradient that it has, between two backwards."""
        for slot in self._slots:
            slot.settle()

    def release(self) -> None:
        """Remove every hook, release every node, and settle incomplete slots."""
        for handle in self._handles:
            handle.remove()
        self.settle()
        self._handles.clear()
        self._slots.clear()
        self._by_node.clear()
        self._histories.clear()


def _reader(readers: list[tuple[int, GradientSlot, Extract | None]]) -> Callable[..., None]:
    # Hold the readers, not the node: a node is never freed if its own hook holds it.
    def read(grad_inputs: tuple[torch.Tensor | None, ...], _outputs: object) -> None:
        for position, slot, extract in readers:
            gradient = grad_inputs[position]
            slot.add(extract(gradient) if extract and gradient is not None else gradient)

    return read
