"""Records every call of the selected modules by hooks, while the user's step runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradscope.capture.calls import (
    Call,
    CallStack,
    Recomputation,
    any_autocast,
    autocast_name,
    call_tensors,
    in_backward,
    sequence_number,
)
from gradscope.capture.frontier import (
    CallSpan,
    ObservedTensor,
    assign_gradient_slots,
    view_of,
    wanted_edges,
)
from gradscope.capture.gradients import GradientHooks
from gradscope.capture.graph import (
    SavedBytes,
    Span,
    Walk,
    edge_of,
    free_nodes,
    owners,
    saved_tensors,
    walk,
)
from gradscope.capture.hooks import hookable_modules, hooked, raised_by_a_handler
from gradscope.capture.measurements import MeasurementCache, version
from gradscope.capture.names import first_names, named_modules, written_class
from gradscope.capture.nodes import Label, describe, links, ordered
from gradscope.capture.parameters import parameter_count, parameter_counts
from gradscope.capture.saved_memory import noticing_hooked_saves
from gradscope.capture.stats import Measured, head_of, resolve
from gradscope.capture.trace import Trace
from gradscope.capture.transformer.parts import TransformerCalls, TransformerParts
from gradscope.errors import first_line
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.graph import Chain, GraphCall
from gradscope.records.modules import Link, ModuleCall
from gradscope.records.tensors import TensorRecord, TensorStats

_BROKEN_VIEW = "its view was overwritten in place: autograd has lost its history"


class Recorder:
    """Collects calls while it is installed.

    Call ``connect`` before backward, and ``calls`` at the end.

    Args:
        model: the module to observe.
        selected: the modules to record; calls of the others are only counted.
        accumulate: add up the gradients of several backwards, as in ``.grad``.
        chained: the modules with a record of their outputs' autograd chains.
        hooks: the modules that get hooks; None: all that can.
        only_training: skip outermost calls without gradients, as in an evaluation.
        saved: count the bytes that nodes save.
        probes: the parts of a transformer to record, as in ``TransformerParts``.
        guard: wraps the hooks, and handles their exceptions.
    """

    def __init__(
        self,
        model: nn.Module,
        selected: dict[nn.Module, Named],
        *,
        accumulate: bool = False,
        chained: dict[nn.Module, Named] | None = None,
        hooks: Sequence[nn.Module] | None = None,
        only_training: bool = False,
        saved: bool = True,
        probes: Collection[str] = (),
        guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.model = model
        self.chains: list[Chain] = []
        self.links: tuple[Link, ...] = ()
        self.total_saved: int | None = None
        #: Leaves outside the model that backward will reach.
        self.leaves: list[torch.Tensor] = []
        #: True if reading the saved tensors of nodes would recompute them, or would fail: then
        #: ``saved_memory.py`` counts them in a separate run.
        self.needs_counting_run = False
        self._modules = named_modules(model)
        self._selected = selected
        self._chained = chained or {}
        self._calls: list[Call] = []
        self._stack = CallStack()
        #: The calls that had not returned when the observation ended, outermost first.
        self.executing: list[Call] = []
        self._thread = threading.get_ident()
        #: The number of calls of each module, selected or not.
        self.counts: dict[nn.Module, int] = {}
        self._kept: list[torch.Tensor] = []
        self._gradient_hooks = GradientHooks(accumulate=accumulate)
        self._measurements = MeasurementCache(self._gradient_hooks)
        self._recomputation = Recomputation(self._gradient_hooks)
        #: The outputs with a graph of the modules that are ``chained``.
        self.outputs: list[tuple[Call, str, GradientEdge]] = []
        self._nodes: list[Node] = []
        self._hooks = hookable_modules(model) if hooks is None else hooks
        self._only_training = only_training
        self._evaluations = CallStack()
        self._count_saved = saved
        self._guard = guard
        self._depth = 2 if guard is None else 3  # of the frame of a module's own __call__
        self._connected: set[int] = set()  # the calls that a walk has reached
        self._taken: dict[int, tuple[int, ...]] = {}
        #: The dtype of ``torch.autocast`` around a call; None if it was off in all calls.
        self.autocast: str | None = None
        self._parts = TransformerParts(
            model,
            probes,
            calls=self._calls,
            stack=self._stack,
            guard=guard or (lambda function: function),
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe until the block ends; then remove every hook and release every graph node."""

        def hooks_seen() -> None:
            self.needs_counting_run = True

        guard = self._guard or (lambda hook: hook)
        try:
            with (
                hooked(self._hooks, guard(self._before), guard(self._after)),
                noticing_hooked_saves(hooks_seen),
                self._parts.installed(),
            ):
                yield
        finally:
            self.executing = self._stack.abandon()
            self._evaluations.abandon()
            self.let_go()
            for call in self._calls:
                call.arguments.clear()

    def let_go(self) -> None:
        """Release every node of the calls so far: their gradients are final."""
        self._gradient_hooks.release()
        self._recomputation = Recomputation(self._gradient_hooks)
        self._measurements.forget()
        self.outputs.clear()
        self._kept.clear()
        for call in self._calls:
            for observed in (*call.inputs, *call.outputs):
                observed.edge = observed.view = None

    @property
    def paused(self) -> bool:
        """True while another part of gradscope runs the model."""
        return self._parts.paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._parts.paused = paused

    def free_nodes(self) -> None:
        """Free the graph, after the loss is gone."""
        free_nodes(self._nodes)

    def take_nodes(self) -> list[Node]:
        """Return the nodes, for a caller that frees them when the graph is no longer held."""
        nodes, self._nodes = self._nodes, []
        return nodes

    @property
    def count(self) -> int:
        """Number of calls, selected or not."""
        return len(self._calls)

    def calls(self) -> tuple[ModuleCall, ...]:
        """Return the finished records, in the order of entry."""
        return self._finish([call for call in self._calls if call.selected])

    def take_parts(self) -> TransformerCalls:
        """Return attention, experts and residual stream of the calls since the last request."""
        return self._parts.take()

    def take_calls(self) -> tuple[ModuleCall, ...]:
        """Return the records of the calls that began, or got gradients, since the last request.

        For an observation over several steps. The numbers of calls restart at 0.
        """
        self._gradient_hooks.settle()
        chosen = [call for call in self._calls if call.selected and self._is_news(call)]
        self.counts.clear()
        return self._finish(chosen)

    def _is_news(self, call: Call) -> bool:
        slots = [item.slot for item in (*call.inputs, *call.outputs) if item.slot is not None]
        arrived = tuple(id(slot.measured) for slot in slots if slot.measured is not None)
        before = self._taken.get(call.index)
        self._taken[call.index] = arrived
        return before is None or before != arrived

    def _finish(self, chosen: Sequence[Call]) -> tuple[ModuleCall, ...]:
        observed = [item for call in chosen for item in (*call.inputs, *call.outputs)]
        gradients = [item.slot.measured for item in observed if item.slot and item.slot.measured]
        done = resolve([*(item.measured for item in observed), *gradients])
        sizes = parameter_counts(self.model) if chosen else {}
        # A module that has left the model since its call.
        gone = {c.module for c in chosen if c.module not in sizes}
        sizes |= {module: parameter_count(module) for module in gone}
        return tuple(_finished(call, done, sizes[call.module]) for call in chosen)

    # ---------------------------------------------------------------- while forward runs

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.paused or module not in self._modules:
            return  # a copy that the model made, hooks and all
        if in_backward():
            self._recomputation.enter(module, args, kwargs)
            return
        frame = sys._getframe(self._depth)  # of the module's own __call__, which runs both hooks
        if self._only_training and self._evaluates(module, frame):
            return
        if self.autocast is None and any_autocast():
            self.autocast = autocast_name(self.model)
        call = self._enter(module, frame)
        if call.selected:
            for path, tensor in call_tensors(args, kwargs):
                call.inputs.append(self._observe(call, path, tensor))
                call.arguments.append((tensor, version(tensor)))
        self._parts.before(call, args, kwargs)
        # Not earlier: reading a view may recreate its node, and that node does not belong to the
        # call.
        call.start = self._sequence(call)

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if self.paused or module not in self._modules:
            return
        if in_backward():
            self._recomputation.leave(module, output)
            return
        frame = sys._getframe(self._depth)
        call = self._stack.leave(frame)
        if call is None:
            self._evaluations.leave(frame)
            return
        call.end = self._sequence(call)
        self._parts.after(call, output)
        for path, tensor in find(output, torch.Tensor):
            if call.selected:
                call.outputs.append(self._observe_output(call, path, tensor))
            if module in self._chained and tensor.grad_fn is not None:
                # An edge keeps the graph alive; a node written in Python does not.
                self.outputs.append((call, path, get_gradient_edge(tensor)))
        edges = [observed.edge for observed in call.inputs if observed.edge is not None]
        if len(set(edges)) < len(edges):
            call.note("shared-input")
        call.arguments.clear()

    def _evaluates(self, module: nn.Module, frame: FrameType) -> bool:
        """Return True if a call belongs to an evaluation: an outermost call without gradients."""
        if self._evaluations.innermost(frame) is not None:
            return True
        if torch.is_grad_enabled() or self._stack.innermost(frame) is not None:
            return False
        named = self._modules[module]
        self._evaluations.enter(frame, Call(-1, module, named, 0, -1, 0, False, module.training))
        return True

    def _enter(self, module: nn.Module, frame: FrameType) -> Call:
        number = self.counts.get(module, 0)
        self.counts[module] = number + 1
        parent = self._stack.innermost(frame)
        call = Call(
            index=len(self._calls),
            module=module,
            named=self._modules[module],
            number=number,
            parent=parent.index if parent else -1,
            start=sequence_number(),
            selected=module in self._selected,
            training=module.training,
        )
        self._calls.append(call)
        self._stack.enter(frame, call)
        if self._elsewhere():
            call.note("other-thread")
        if not torch.is_grad_enabled():
            call.note("no-grad")
            self._recomputation.note_ungraphed(call)
        return call

    def _elsewhere(self) -> bool:
        """Return True if this thread has a separate sequence of node numbers: then a call's nodes
        are unknown."""
        return threading.get_ident() != self._thread

    def _sequence(self, call: Call) -> int:
        return 0 if self._elsewhere() else sequence_number()

    def _observe(self, call: Call, path: str, tensor: torch.Tensor) -> ObservedTensor:
        measured = self._measured(call, tensor)
        try:
            node = tensor.grad_fn
        except RuntimeError:
            call.note(_BROKEN_VIEW)
            return ObservedTensor(path, measured, tensor.requires_grad, None)
        grad_fn = None if node is None else type(node).__name__
        observed = ObservedTensor(path, measured, tensor.requires_grad, grad_fn)
        if tensor.requires_grad and not self._elsewhere():
            observed.edge = edge_of(tensor)
            observed.view = view_of(tensor)
            if node is None:
                self._kept.append(tensor)  # its id identifies it, so it must stay alive
        return observed

    def _observe_output(self, call: Call, path: str, tensor: torch.Tensor) -> ObservedTensor:
        observed = self._observe(call, path, tensor)
        if observed.edge is not None or (observed.grad_fn and self._elsewhere()):
            observed.slot = self._measurements.slot(tensor)
            for given, (argument, before) in zip(call.inputs, call.arguments, strict=True):
                if argument is tensor and before == version(tensor):
                    given.slot = observed.slot
                    call.note("pass-through")
        return observed

    def _measured(self, call: Call, tensor: torch.Tensor) -> Measured:
        try:
            return self._measurements.measured(tensor)
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            # A tensor that cannot be reduced (inside vmap, fake, opaque layout) gets a row with a
            # note.
            call.note(f"unmeasured: {first_line(error)}")
            return self._measurements.remember(tensor, head_of(tensor)).measured

    # ---------------------------------------------------------------- before backward

    def connect(self, roots: Sequence[torch.Tensor | GradientEdge], inputs: dict[int, str]) -> None:
        """Assign every input gradient to its consumers after forward, by one walk from ``roots``.

        With several backwards, call it before each; it then handles the calls since the last.

        Args:
            roots: the tensors that backward starts from.
            inputs: names of the model's own input tensors, by ``id``, for the chains' leaves.
        """
        spans = self._spans()
        call_spans = [
            CallSpan(span.start, span.end, call.inputs, call.outputs)
            for call, span in zip(self._calls, spans, strict=True)
            if call.selected and call.index not in self._connected
        ]
        edges = [
            edge_of(root) for root in roots if isinstance(root, GradientEdge) or root.requires_grad
        ]
        found = walk(edges, wanted_edges(call_spans))
        self._nodes += found.nodes
        self.links = links(found, spans, self._label)
        assign_gradient_slots(found, call_spans, self._gradient_hooks)
        self._gradient_hooks.armed = True
        if self._count_saved and not self.needs_counting_run:
            self._read_saved(found, spans)
        self._connected |= {call.index for call in self._calls if _reached(found, call)}
        names = inputs | {id(p): name for name, p in first_names(self.model)}
        self.leaves = [leaf for leaf in found.leaves if id(leaf) not in names]
        for call, path, root in self.outputs:
            nodes = describe(ordered([root.node]), spans, self._label, names)
            self.chains.append(Chain(call.named.name, call.number, path, tuple(nodes)))
        self.outputs.clear()

    def trace(
        self,
        root: Node,
        inputs: Mapping[int, str],
        locate: Callable[[Sequence[str]], str | None],
        stacks: Callable[[], AbstractContextManager[None]],
    ) -> Trace:
        """Trace the full graph upstream of one node for one backward, in place of ``connect``.

        Args:
            root: the ``grad_fn`` that backward starts from.
            inputs: names of the model's own input tensors, by ``id``.
            locate: finds the user's line in the stack of formatted frames of anomaly mode.
            stacks: a context for a checkpoint's recomputation.
        """
        return Trace(
            root,
            self._spans(),
            self._label,
            dict(inputs) | {id(p): name for name, p in first_names(self.model)},
            recomputed=self._recomputed,
            locate=locate,
            stacks=stacks,
            excluded=self.model.parameters(),
            unreadable=self.needs_counting_run,
        )

    def graph_calls(self) -> tuple[GraphCall, ...]:
        """Return every call, as the graph's nodes refer to it."""
        return tuple(
            GraphCall(c.named.name, c.number, written_class(c.module).__name__, c.parent)
            for c in self._calls
        )

    def _recomputed(self) -> tuple[list[Span], Label]:
        repeated = self._recomputation.take_spans()
        return [span for _, span in repeated], lambda i: self._label(repeated[i][0])

    def _spans(self) -> list[Span]:
        now = sequence_number()
        return [Span(c.start, now if c.end is None else c.end, c.parent) for c in self._calls]

    def _label(self, index: int) -> tuple[str, int]:
        return self._calls[index].named.name, self._calls[index].number

    def _read_saved(self, found: Walk, spans: Sequence[Span]) -> None:
        saved = SavedBytes(self.model.parameters())
        try:
            for node, owner in zip(found.nodes, owners(found.nodes, spans), strict=True):
                for _, tensor in saved_tensors(node):
                    saved.add(tensor, owner)
        except RuntimeError:  # written to in place since it was saved
            self.needs_counting_run = True
        else:
            self.set_saved(saved)

    def set_saved(self, saved: SavedBytes) -> None:
        """Set the saved bytes, by call number."""
        by_call, total = saved.totals(self._spans())
        # Each of several micro-batches is freed before the next exists.
        self.total_saved = max(total, self.total_saved or 0)
        for call in self._calls:
            if call.index not in self._connected or call.index in by_call:
                call.saved_bytes = by_call.get(call.index, 0)


def _reached(found: Walk, call: Call) -> bool:
    return any(observed.edge and found.reaches(observed.edge) for observed in call.outputs)


def _finished(call: Call, done: dict[int, TensorStats], parameters: int) -> ModuleCall:
    notes = list(call.notes)
    if "recomputed" in notes and "no-grad" in notes:
        notes.remove("no-grad")  # a checkpoint's first pass, not a choice of the user's
    for observed in (*call.inputs, *call.outputs):
        if observed.slot and observed.slot.note and observed.slot.note not in notes:
            notes.append(observed.slot.note)
    if not call.returned:
        notes.append("did-not-return")
    return ModuleCall(
        name=call.named.name,
        type=written_class(call.module).__name__,
        call=call.number,
        order=call.index,
        aliases=call.named.aliases,
        training=call.training,
        notes=tuple(notes),
        inputs=tuple(_record(observed, done) for observed in call.inputs),
        outputs=tuple(_record(observed, done) for observed in call.outputs),
        saved_bytes=call.saved_bytes,
        parameters=parameters,
    )


def _record(observed: ObservedTensor, done: dict[int, TensorStats]) -> TensorRecord:
    gradient = observed.slot.measured if observed.slot else None
    return TensorRecord(
        observed.path,
        done[id(observed.measured)],
        None if gradient is None else done[id(gradient)],
        observed.grad_fn,
        observed.requires_grad,
    )
