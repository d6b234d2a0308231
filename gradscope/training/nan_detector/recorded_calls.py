"""Records a call of a trained model at its start, so that it can be replayed at the end of the
step.

In a plain step this is most of the NaN detector's work, so it does as little as possible.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.calls import any_autocast, autocast_dtypes
from gradscope.capture.graph import Span
from gradscope.capture.hooks import Handle, hook_first_output, hook_node_before
from gradscope.capture.measurements import version
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import is_spread
from gradscope.explain.non_finite.reasons import level
from gradscope.explain.shared.frames import is_hidden
from gradscope.loading.random_states import RandomState
from gradscope.nesting import find
from gradscope.running.state import cloned
from gradscope.training.nan_detector.side_effects import BufferValues, Modes, PutBack, SideEffects

_PLAIN = (int, float, str, type(None))
_SEQUENCE = torch._C._autograd._get_sequence_nr


#: In the metadata of a node, which lives as long as the node.
_KEY = "gradscope.result"


class NodeMark:
    """Identifies a node, without keeping it and the tensors that it saved alive."""

    __slots__ = ()


#: A node, and the number of its output.
MarkedEdge = tuple[NodeMark, int]
Arrived = torch.Tensor | tuple[torch.Tensor | None, ...] | None


class RecordedCall:
    """The inputs of a call, and the state around it at its start.

    Attributes:
        name: the model's name in the script.
        side_effects: the model's side effects; they decide which other state is saved.
        autocast: the dtype of autocast for each kind of device with autocast on.
        before: functions that restore the other state, part by part.
        copied: True if the arguments are copies, because the forward writes to its input.
        nodes: the marks of the nodes that made its results, each with the gradients that arrived
            there: for each backward one gradient, or a tuple with one per output.
        hooks: the hooks on these nodes.
        end: the number of the first node that was made after the call.
        results: the results with their edges in the graph, as long as the script holds them. If the
            script drops a graph, it is freed, with its saved tensors.
        level: the worst level of its results (finite, Inf, NaN), if known.
        carried: True if the call belongs to the step before.
        refused: True if a replay would have waited for other processes.
        in_graph: True if a backward began after the call.
        drew: True if a replay drew random numbers, although the model's first calls did not.
    """

    # Not set for each call: most are asked for after few.
    autocast: Sequence[tuple[str, torch.dtype]] = ()
    before: Sequence[PutBack] = ()
    copied = False
    results: Sequence[tuple[RememberedTensor, MarkedEdge | None]] = ()
    level: int | None = None
    carried = False
    refused = drew = in_graph = _last = False
    end = -1

    def __init__(
        self,
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        side_effects: SideEffects,
    ) -> None:
        self.name, self.module, self.side_effects = name, module, side_effects
        self.args, self.kwargs = args, kwargs
        self.line = side_effects.line or calling_line()
        if any_autocast():
            self.autocast = autocast_dtypes()
        given: list[torch.Tensor] = []
        versions: list[int] = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                given.append(value)
                versions.append(-1 if value.is_inference() else value._version)
            elif not isinstance(value, _PLAIN):
                found = tensors_of((value,))
                given += found
                versions += map(version, found)
        self._given, self._versions = given, versions
        if side_effects.keeps:
            self.before = side_effects.snapshot()
            if side_effects.writes_arguments:
                self.args, self.kwargs = cloned((args, kwargs))
                self.copied = True
        trained = side_effects.trained()
        self._weights = None if trained is None else (id(trained), trained._version)
        self.hooks: list[Handle | dict[int, Any]] = []
        self.nodes: dict[NodeMark, list[Arrived]] = {}
        self._start = _SEQUENCE()

    def ended(self, output: Any) -> None:
        """Note the end of the call, and observe the gradients of its results."""
        self.end = _SEQUENCE()
        if isinstance(output, torch.Tensor) and output.output_nr == 0:
            node = output.grad_fn
            if node is None:
                self.results = ((remembered(output), None),)
            else:
                mark = _marked(node)
                self.results = ((remembered(output), (mark, 0)),)
                arrived = self.nodes[mark] = []
                # A list's own method, for frames of Python's cost more.
                self.hooks.append(hook_first_output(node, arrived.append))
        else:
            found = tensors_of((output,))
            self.results = [
                (remembered(t), None if t.grad_fn is None else (_marked(t.grad_fn), t.output_nr))
                for t in found
            ]
            self.listen_last()
        if self.side_effects.learning:
            self.side_effects.learn(self.overwritten, self.line)
        if self.copied:
            self._given.clear()
            self._versions.clear()

    def listen_last(self) -> None:
        """Observe the gradients of the results after the script's own hooks on them."""
        if self._last:
            return
        self._last = True
        self.release()
        marks = dict.fromkeys(edge[0] for _, edge in self.results if edge is not None)
        alive = [result for reference, _ in self.results if (result := reference()) is not None]
        nodes = nodes_of(marks.keys(), alive)
        for mark in marks:  # in the order of the results, which a replay has, too
            arrived = self.nodes.setdefault(mark, [])
            if mark in nodes:
                self.hooks.append(hook_node_before(nodes[mark], arrived.append))

    @property
    def span(self) -> Span:
        """The nodes that the call made; empty before it has returned."""
        return Span(self._start, self.end, -1)

    @property
    def returned(self) -> bool:
        """True if the call ran to its end."""
        return self.end >= 0

    @property
    def arrived(self) -> bool:
        """True if a gradient arrived at its results."""
        return any(self.nodes.values())

    @property
    def overwritten(self) -> bool:
        """True if an argument was written to since."""
        return self._versions != list(map(version, self._given))

    @property
    def moved(self) -> bool:
        """True if the weights changed since."""
        trained = self.side_effects.trained()
        return trained is not None and self._weights != (id(trained), trained._version)

    @property
    def repeatable(self) -> bool:
        """True if the call can run in this process alone."""
        return not (self.refused or any(map(_needs_others, self.module.modules())))

    @property
    def repeats(self) -> bool:
        """True if a repeated call gives the same results, as far as observed."""
        return self.repeatable and not self.drew

    @property
    def is_held(self) -> bool:
        """True if the script holds a result of the call, so that a backward may still reach it."""
        return any(result() is not None for result, _ in self.results)

    @property
    def given_finite(self) -> bool:
        """True if the gradients that arrived are finite; False if none arrived."""
        arrived = [
            gradient
            for several in self.nodes.values()
            for each in several
            for gradient in (each if isinstance(each, tuple) else (each,))
        ]
        return bool(arrived) and not any(level(g) for g in arrived if g is not None)

    def gradient_of(self, number: int, mark: NodeMark, backward: int) -> torch.Tensor | None:
        """Return the gradient of a node's output, by its number; None without one."""
        arrived = self.nodes.get(mark, [])
        if backward >= len(arrived):
            return None
        several = arrived[backward]
        return several[number] if isinstance(several, tuple) else several

    def alive(self) -> list[torch.Tensor] | None:
        """Return the results, if the script holds all of them and has not written to them."""
        found = []
        for reference, edge in self.results:
            result = reference()
            if result is None or edge != _edge(result):
                return None
            found.append(result)
        return found

    @property
    def random_states(self) -> list[RandomState]:
        """The known random states at its start, of the generators that it draws from."""
        return [one for one in self.before if isinstance(one, RandomState)]

    @property
    def modes(self) -> dict[nn.Module, bool]:
        """The modes of its modules at its start; True is train mode."""
        for one in self.before:
            if isinstance(one, Modes):
                return one.held
        # All modules have one mode, which the script may have changed since.
        training = self.side_effects.training
        same = self.module.training == training
        return {m: m.training if same else training for m in self.module.modules()}

    @property
    def buffers(self) -> dict[torch.Tensor, torch.Tensor]:
        """The buffers that it writes to, each with its values at its start."""
        kept = (one.copies for one in self.before if isinstance(one, BufferValues))
        return dict(pair for copies in kept for pair in copies)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Restore the random states, modes, buffers and autocast at the start of the call.

        After the block, only autocast is restored; ``state_restored`` around it restores the rest.
        """
        for module, training in self.modes.items():
            if module.training != training:
                module.training = training
        for put_back in self.before:
            put_back()
        known = dict(self.autocast)
        with ExitStack() as autocast:
            for device, _ in autocast_dtypes():
                if device not in known:
                    autocast.enter_context(torch.autocast(device, enabled=False))
            for device, dtype in self.autocast:
                # Without the autocast cache, in which the script would find casts of this run.
                autocast.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            yield

    def release(self) -> None:
        """Stop observing: a graph that stays alive holds nothing of gradscope afterwards."""
        for hook in self.hooks:
            if isinstance(hook, dict):
                hook.clear()
            else:
                hook.remove()


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Return the tensors in arguments or results; plain containers take a fast path."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif not isinstance(value, _PLAIN):
            found += (tensor for _, tensor in find(value, torch.Tensor))
    return found


def nodes_of(marks: Set[NodeMark], roots: Iterable[torch.Tensor]) -> dict[NodeMark, Node]:
    """Return the marked nodes in the graphs of these tensors."""
    found: dict[NodeMark, Node] = {}
    stack: list[Node | None] = [root.grad_fn for root in roots]
    seen: set[Node] = set()
    while stack and len(found) < len(marks):
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        mark: NodeMark | None = _metadata(node).get(_KEY)
        if mark is not None and mark in marks:
            found[mark] = node
        stack += [following for following, _ in node.next_functions]
    return found


def _marked(node: Node) -> NodeMark:
    mark: NodeMark = _metadata(node).setdefault(_KEY, NodeMark())
    return mark


def _metadata(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata  # a property, whatever its annotation says
    return found


def _edge(tensor: torch.Tensor) -> tuple[NodeMark | None, int] | None:
    node = tensor.grad_fn
    return None if node is None else (_metadata(node).get(_KEY), tensor.output_nr)


def calling_line() -> tuple[str, int] | None:
    """Return the innermost line that is not PyTorch's or gradscope's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _needs_others(module: nn.Module) -> bool:
    """Return True if its forward is known to wait for other processes."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    sharded = any(is_spread(p) for p in module.parameters(recurse=False))
    return sharded or bool(kinds & {"SyncBatchNorm", "FullyShardedDataParallel", "FSDPModule"})
