"""Records of every call of every selected module, taken by hooks while the user's step runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradscope.capture.containers import call_tensors, tensors
from gradscope.capture.frontier import Met, Passage, tie, wanted_edges
from gradscope.capture.gradients import GradientSlot, Listeners
from gradscope.capture.graph import (
    SavedBytes,
    Span,
    Walk,
    chain,
    edge_of,
    owners,
    saved_tensors,
    walk,
)
from gradscope.capture.hooks import hooked, named_modules
from gradscope.capture.recompute import Recomputation, in_backward
from gradscope.capture.saved import noticing_hooked_saves, saving_is_hooked
from gradscope.capture.stats import Measured, measure, resolve
from gradscope.capture.views import view_of
from gradscope.patterns import Named
from gradscope.records import Chain, ModuleCall, TensorRecord, TensorStats


@dataclass(slots=True)
class Call:
    """One call while its records are being collected."""

    index: int
    module: nn.Module
    named: Named
    number: int
    parent: int
    start: int
    selected: bool
    training: bool
    end: int | None = None  # None until it returns
    notes: list[str] = field(default_factory=list)
    inputs: list[Met] = field(default_factory=list)
    outputs: list[Met] = field(default_factory=list)
    arguments: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # only while it runs
    saved_bytes: int | None = None

    def note(self, text: str) -> None:
        """Remember a note, once."""
        if text not in self.notes:
            self.notes.append(text)


class Recorder:
    """Collects calls while it is installed; ``connect`` comes before backward, ``calls`` last.

    Args:
        model: the module to watch.
        selected: the modules to record; the others are only followed.
        accumulate: gradients of several backwards are added up, as ``.grad`` is.
        chained: the modules whose outputs' autograd chains are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        selected: dict[nn.Module, Named],
        *,
        accumulate: bool = False,
        chained: dict[nn.Module, Named] | None = None,
    ) -> None:
        self.model = model
        self.chains: list[Chain] = []
        self.total_saved: int | None = None
        #: True where reading what the nodes saved would recompute it, or would fail: `saved.py`
        #: then counts in a run of its own.
        self.needs_counting_run = False
        self._modules = named_modules(model)
        self._selected = selected
        self._chained = chained or {}
        self._calls: list[Call] = []
        self._stack: list[Call] = []
        self._counts: dict[nn.Module, int] = {}
        self._seen: dict[
            int, tuple[weakref.ref[torch.Tensor], int, Measured, GradientSlot | None]
        ] = {}
        self._listeners = Listeners(accumulate=accumulate)
        self._recomputation = Recomputation(self._listeners)
        self._chain_roots: list[tuple[Call, str, GradientEdge]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch until the block ends; then every hook is gone and every graph node let go."""
        try:
            with hooked(list(self._modules), self._before, self._after), noticing_hooked_saves():
                yield
        finally:
            self._listeners.release()
            self._recomputation = Recomputation(self._listeners)
            self._chain_roots.clear()
            self._seen.clear()
            for call in self._calls:
                call.arguments.clear()
                for met in (*call.inputs, *call.outputs):
                    met.edge = met.view = None

    @property
    def count(self) -> int:
        """How many calls there were, selected or not."""
        return len(self._calls)

    def executing(self) -> list[Call]:
        """The calls that have not returned, outermost first."""
        return list(self._stack)

    def calls(self) -> tuple[ModuleCall, ...]:
        """The finished records, in the order of entry."""
        chosen = [call for call in self._calls if call.selected]
        met = [item for call in chosen for item in (*call.inputs, *call.outputs)]
        gradients = [item.slot.measured for item in met if item.slot and item.slot.measured]
        done = resolve([*(item.measured for item in met), *gradients])
        return tuple(_finished(call, done) for call in chosen)

    # ---------------------------------------------------------------- while forward runs

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward():
            self._recomputation.enter(module, args, kwargs)
            return
        call = self._enter(module)
        if call.selected:
            for path, tensor in call_tensors(args, kwargs):
                call.inputs.append(self._meet(call, path, tensor))
                call.arguments.append((tensor, _version(tensor)))

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if in_backward():
            self._recomputation.leave(module, output)
            return
        while self._stack[-1].module is not module:
            self._stack.pop()  # calls that raised, and whose error the user's code caught
        call = self._stack.pop()
        call.end = torch._C._autograd._get_sequence_nr()
        self.needs_counting_run |= saving_is_hooked()
        for path, tensor in tensors(output):
            if call.selected:
                call.outputs.append(self._meet_output(call, path, tensor))
            if module in self._chained and tensor.grad_fn is not None:
                # An edge keeps the graph alive; a node that is written in Python does not.
                self._chain_roots.append((call, path, get_gradient_edge(tensor)))
        edges = [met.edge for met in call.inputs if met.edge is not None]
        if len(set(edges)) < len(edges):
            call.note("shared-input")
        call.arguments.clear()

    def _enter(self, module: nn.Module) -> Call:
        number = self._counts.get(module, 0)
        self._counts[module] = number + 1
        call = Call(
            index=len(self._calls),
            module=module,
            named=self._modules[module],
            number=number,
            parent=self._stack[-1].index if self._stack else -1,
            start=torch._C._autograd._get_sequence_nr(),
            selected=module in self._selected,
            training=module.training,
        )
        self._calls.append(call)
        self._stack.append(call)
        self.needs_counting_run |= saving_is_hooked()
        if not torch.is_grad_enabled():
            call.note("no-grad")
            self._recomputation.note_ungraphed(call)
        return call

    def _meet(self, call: Call, path: str, tensor: torch.Tensor) -> Met:
        grad_fn = None if tensor.grad_fn is None else type(tensor.grad_fn).__name__
        met = Met(path, self._measured(call, tensor), tensor.requires_grad, grad_fn)
        if tensor.requires_grad:
            met.edge = edge_of(tensor)
            met.view = view_of(tensor)
        return met

    def _meet_output(self, call: Call, path: str, tensor: torch.Tensor) -> Met:
        met = self._meet(call, path, tensor)
        if tensor.requires_grad:
            met.slot = self._slot_of(tensor)
            for given, (argument, version) in zip(call.inputs, call.arguments, strict=True):
                if argument is tensor and version == _version(tensor):
                    given.slot = met.slot
                    call.note("pass-through")
        return met

    def _measured(self, call: Call, tensor: torch.Tensor) -> Measured:
        """Measure a tensor, or recall what was measured of the same one, unchanged since."""
        version = _version(tensor)
        known = self._seen.get(id(tensor))
        if known and known[0]() is tensor and version == known[1] >= 0:
            return known[2]
        try:
            measured = measure(tensor)
        except (RuntimeError, NotImplementedError) as error:
            # A tensor that has no reductions (inside vmap, an opaque layout): a row says so.
            call.note(f"unmeasured: {str(error).splitlines()[0]}")
            shape = tuple(int(n) for n in tensor.shape)
            measured = TensorStats(shape, str(tensor.dtype).removeprefix("torch."), tensor.numel())
        self._seen[id(tensor)] = (weakref.ref(tensor), version, measured, None)
        return measured

    def _slot_of(self, tensor: torch.Tensor) -> GradientSlot:
        """The slot that a hook on this tensor, as it is now, fills."""
        reference, version, measured, slot = self._seen[id(tensor)]
        if slot is None:
            slot = self._listeners.slot()
            self._listeners.on_tensor(tensor, slot)
            self._seen[id(tensor)] = (reference, version, measured, slot)
        return slot

    # ---------------------------------------------------------------- before backward

    def connect(self, roots: Sequence[torch.Tensor], inputs: dict[int, str]) -> None:
        """After forward: one walk from ``roots`` ties every input gradient to its consumers.

        Args:
            roots: the tensors that backward starts from.
            inputs: names of the model's own input tensors, by ``id``, for the chains' leaves.
        """
        spans = self._spans()
        passages = [
            Passage(span.start, span.end, call.inputs, call.outputs)
            for call, span in zip(self._calls, spans, strict=True)
            if call.selected
        ]
        edges = [edge_of(root) for root in roots if root.requires_grad]
        found = walk(edges, wanted_edges(passages))
        tie(found, passages, self._listeners)
        self._listeners.armed = True
        if not self.needs_counting_run:
            self._read_saved(found, spans)
        names = inputs | {id(p): name for name, p in self.model.named_parameters()}
        for call, path, root in self._chain_roots:
            nodes = chain(root.node, spans, self._label, names)
            self.chains.append(Chain(call.named.name, call.number, path, nodes))
        self._chain_roots.clear()

    def _spans(self) -> list[Span]:
        now = torch._C._autograd._get_sequence_nr()
        return [Span(c.start, now if c.end is None else c.end, c.parent) for c in self._calls]

    def _label(self, index: int) -> tuple[str, int]:
        return self._calls[index].named.name, self._calls[index].number

    def _read_saved(self, found: Walk, spans: Sequence[Span]) -> None:
        saved = SavedBytes(self.model.parameters())
        try:
            for node, owner in zip(found.nodes, owners(found.nodes, spans), strict=True):
                for tensor in saved_tensors(node):
                    saved.add(tensor, owner)
        except RuntimeError:  # written to in place since it was saved
            self.needs_counting_run = True
        else:
            self.set_saved(saved)

    def set_saved(self, saved: SavedBytes) -> None:
        """Enter the bytes that were counted by call number."""
        by_call, self.total_saved = saved.totals(self._spans())
        for call in self._calls:
            call.saved_bytes = by_call.get(call.index, 0)


def _version(tensor: torch.Tensor) -> int:
    """The in-place version counter; -1 where there is none."""
    return -1 if tensor.is_inference() else tensor._version


def _finished(call: Call, done: dict[int, TensorStats]) -> ModuleCall:
    notes = list(call.notes)
    if "recomputed" in notes and "no-grad" in notes:
        notes.remove("no-grad")  # a checkpoint's first pass, not a choice of the user's
    for met in (*call.inputs, *call.outputs):
        if met.slot and met.slot.note and met.slot.note not in notes:
            notes.append(met.slot.note)
    if call.end is None:
        notes.append("did-not-return")
    return ModuleCall(
        name=call.named.name,
        type=type(call.module).__name__,
        call=call.number,
        order=call.index,
        aliases=call.named.aliases,
        training=call.training,
        notes=tuple(notes),
        inputs=tuple(_record(met, done) for met in call.inputs),
        outputs=tuple(_record(met, done) for met in call.outputs),
        saved_bytes=call.saved_bytes,
    )


def _record(met: Met, done: dict[int, TensorStats]) -> TensorRecord:
    gradient = met.slot.measured if met.slot else None
    return TensorRecord(
        met.path,
        done[id(met.measured)],
        None if gradient is None else done[id(gradient)],
        met.grad_fn,
        met.requires_grad,
    )
