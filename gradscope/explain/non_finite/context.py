"""Tracks what surrounds each operation: phase, module call, line, node, and tensors from outside.

Those exist before or after the run: inputs, parameters, buffers, outputs.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.names import buffer_names, first_names
from gradscope.capture.stats import measure
from gradscope.explain.non_finite.origins import ObservedOrigin, ObservedOrigins
from gradscope.explain.non_finite.reasons import (
    INF,
    NAN,
    Reason,
    broken,
    level,
    only_negative,
    slope,
)
from gradscope.explain.shared.frames import CallSite, is_hidden, is_ours, outwards
from gradscope.explain.shared.operations import function_name, written
from gradscope.explain.shared.tracing_modes import ModuleCalls, TracedCall, memory_of, tensors_in
from gradscope.nesting import find

#: Many operations of the engine's, none of them written by the user.
_ENGINE = ("backward", "grad", "_set_grad_enabled")


class CurrentFunction:
    """The outermost PyTorch function that runs: ``softmax`` for all its operations."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.serial = 0  # of the latest call
        self.asleep = False  # while something of ours computes

    def run(self, call: TracedCall) -> Any:
        """Run a function under its name."""
        if self.asleep:
            return call.run()
        name = function_name(call.function)
        with self.named(None if name in _ENGINE else written(name)):
            return call.run()

    @contextmanager
    def named(self, name: str | None) -> Iterator[None]:
        """Attribute all operations in the block to one call of this function."""
        self.serial += 1
        self.name = name
        try:
            yield
        finally:
            self.name = None


class NodeSites:
    """The line, module call and function of each node that the run makes, in the thread that it
    began in.

    PyTorch counts the nodes of each thread from 0. The operations of a backward on a GPU run in the
    device's own thread, which makes nodes only where a checkpoint computes its forward again.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._elsewhere: dict[int, tuple[int, int]] = {}  # by thread: its nodes, from and to
        self._last = torch._C._autograd._get_sequence_nr()
        self._first = self._last
        self._starts = array("q")
        self._places: list[tuple[CallSite, int, str | None, bool]] = []
        self._seen: dict[CallSite, CallSite] = {}

    def grown(self) -> bool:
        """True if nodes were created since the last ``note``."""
        number, here = torch._C._autograd._get_sequence_nr(), get_ident()
        if here == self._thread:
            return number != self._last
        first, _ = self._elsewhere.get(here, (number, number))
        self._elsewhere[here] = first, number
        return False

    def note(self, site: CallSite, serial: int, function: str | None) -> None:
        """Attribute the nodes since the last ``note`` to this place, and to this call of a
        function."""
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self._starts.append(self._last)
        self._places.append((self._seen.setdefault(site, site), serial, function, hooked))
        self._last = torch._C._autograd._get_sequence_nr()

    def of(self, node: Node) -> tuple[CallSite, int | None, str | None, bool]:
        """Return place, call and function, and True if hooks cover the node's saved tensors."""
        number = node._sequence_nr()
        ambiguous = any(first <= number < last for first, last in self._elsewhere.values())
        if ambiguous or not self._first <= number < self._last:
            return CallSite(), None, None, True
        return self._places[bisect_right(self._starts, number) - 1]


_CHECKPOINT = "/torch/utils/checkpoint.py"
_FUNCTION = "/torch/autograd/function.py"


@dataclass(frozen=True, slots=True)
class OperationContext:
    """The context of one operation.

    Attributes:
        group: the function call, or the node, that the operation is a part of.
        name: the parameter that the operation belongs to, if known.
        node: the running node of backward, and ``made_by`` the call of ``function`` that made it.
    """

    phase: str
    op: str
    site: CallSite
    group: object
    name: str | None = None
    node: Node | None = None
    made_by: int | None = None
    function: str | None = None


class RunContext:
    """The stage of the run, and the context of each operation in it.

    Args:
        model: names the parameters.
        calls: the running module calls.
        function: the running function.
        made: the places where the nodes of backward were made.
    """

    def __init__(
        self, model: nn.Module, calls: ModuleCalls, function: CurrentFunction, made: NodeSites
    ) -> None:
        self.stage = "forward"
        self._calls = calls
        self._function = function
        self._made = made
        self._parameters = {memory_of(p): n for n, p in first_names(model)}
        self._parameters.pop(0, None)
        self._group = 0
        self._alone = 0

    def passing(self) -> None:
        """Note the start of an operation: nodes made since the last one belong to this line."""
        # Outside every function, as in a script, each operation is its own group.
        self._alone -= 1
        self._group = self._function.serial if self._function.name else self._alone
        if self._made.grown():
            self._made.note(self.site(), self._group, self._function.name)

    def site(self) -> CallSite:
        """Return the innermost module call and the user's line."""
        return self._calls.site()

    def now(self, core: str = "", out: torch.Tensor | None = None) -> OperationContext:
        """Return the context of an operation; ``core`` is its name if no function runs."""
        op = self._function.name or {"to_copy": "to"}.get(core, core)
        node = torch._C._current_autograd_node()
        frame = sys._getframe(1)
        if self.stage == "step":
            owner = _optimizer(outwards(frame, self._calls.last))
            owner = owner or _outermost(outwards(frame, self._calls.last))
            name = None if out is None else self._parameters.get(memory_of(out))
            return OperationContext("step", owner or op, self.site(), self._group, name)
        recomputed = _through(outwards(frame, self._calls.last), _CHECKPOINT)
        if node is None or (recomputed and torch.is_grad_enabled()):
            return OperationContext(self._phase(), op, self.site(), self._group)
        site, serial, function, _ = self._made.of(node)
        own = _own_backward(outwards(frame, self._calls.last))
        if own is not None:
            site, function = CallSite(site.module, site.call, *own), None
        leaf = getattr(node, "variable", None)
        name = None if leaf is None else self._parameters.get(memory_of(leaf))
        return OperationContext(
            "backward", type(node).__name__, site, node, name, node, serial, function
        )

    def slope(self, node: Node, reason: Reason) -> tuple[Reason, tuple[torch.Tensor, ...]]:
        """Explain a NaN or Inf of a node by the derivative of its function."""
        return slope(node, reason, readable=not self._made.of(node)[3])

    def _phase(self) -> str:
        if self.stage == "backward" and self._calls.innermost() is None:
            return "backward"
        outside = self._calls.innermost() is None and bool(self._calls.called)
        return "loss" if outside else "forward"


def _optimizer(frames: Iterator[FrameType]) -> str | None:
    """Return the optimizer whose step is running in the frames, as ``Adam.step``."""
    for frame in frames:
        if frame.f_code.co_name == "step":
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.optim.Optimizer):
                return f"{type(owner).__name__}.step"
    return None


def _outermost(frames: Iterator[FrameType]) -> str | None:
    """Return the PyTorch function that the user called, if it is written in Python."""
    name = None
    for frame in frames:
        code = frame.f_code
        if not is_hidden(code.co_filename):
            return name
        if not is_ours(code.co_filename) and not code.co_name.startswith(("_", "decorate")):
            name = code.co_name
    return None


def _through(frames: Iterator[FrameType], file: str) -> bool:
    return any(frame.f_code.co_filename.endswith(file) for frame in frames)


def _own_backward(frames: Iterator[FrameType]) -> tuple[str, int] | None:
    """Return the line in the backward of a custom autograd function, if one is running."""
    own: tuple[str, int] | None = None
    for frame in frames:
        file = frame.f_code.co_filename
        if file.endswith(_FUNCTION) and frame.f_code.co_name == "apply":
            return own
        if own is None and not is_hidden(file):
            own = file, frame.f_lineno
    return None


_LOOK = "check its source: the file, or a division or logarithm in the preprocessing"
_LOAD = "load a checkpoint from before, or initialise it"


class ExternalTensors:
    """Registers tensors from outside the run, and notes its non-finite results.

    Args:
        model: owns parameters and buffers.
        origins: the registry.
    """

    def __init__(self, model: nn.Module, origins: ObservedOrigins) -> None:
        self._model = model
        self._origins = origins

    def before(self, inputs: Mapping[str, Any] | None) -> None:
        """Register the known inputs, the parameters and the buffers at their present values."""
        for key, value in (inputs or {}).items():
            for path, tensor in find(value, torch.Tensor):
                self._input(f"{key}.{path}" if path else key, tensor)
        for name, parameter in first_names(self._model):
            if mask := self._held(name, parameter, "parameter", _LOAD):
                self._origins.mark_reached(mask if parameter.requires_grad else 0)
        for name, buffer in buffer_names(self._model):
            self._held(name, buffer, "parameter", _LOAD)

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Register the arguments of the model's own call."""
        for tree in (args, kwargs):
            for name, tensor in find(tree, torch.Tensor):
                self._input(name, tensor)

    def returned(self, name: str, root: bool, output: Any) -> None:
        """Note a module's output; NaN in it is reported, and so is Inf in the model's result."""
        for tensor in tensors_in(output):
            mask = self._origins.of(tensor)
            found = level(tensor) if mask else 0
            if not found:
                continue
            if not root:
                self._origins.spread(mask, name)
            made = any(not origin.deliberate for origin in self._origins.members(mask))
            if found == NAN or (root and made):
                self._origins.mark_reached(mask)

    def stays(self, tensor: torch.Tensor, name: str) -> int:
        """Mark the origins of a lasting tensor; return its level if it has no known origin."""
        found = level(tensor)
        mask = self._origins.of(tensor) if found else 0
        self._origins.spread(mask, name)
        self._origins.mark_reached(mask)
        return 0 if mask else found

    def kept_in_state(self) -> None:
        """Mark origins from the optimizer's step that are still in its state."""
        held = self._origins.living()
        for number, origin in enumerate(self._origins.all):
            if held >> number & 1 and origin.phase == "step" and not origin.deliberate:
                origin.spread.setdefault("the optimizer's state")
                origin.reached = True

    def outside(self, tensor: torch.Tensor, found: int, site: CallSite) -> int:
        """Register a tensor of unknown origin: a constant, or from a closure or a file."""
        count = _count(tensor, found)
        reason = Reason(_share(tensor, count), _LOOK, count)
        return self._origins.add(
            ObservedOrigin(
                found,
                "input",
                None,
                site,
                reason,
                deliberate=found == INF,
                inputs=(measure(tensor),),
            )
        )

    def _input(self, name: str, tensor: torch.Tensor) -> None:
        if not self._origins.of(tensor):
            self._held(name, tensor, "input", _LOOK)

    def _held(self, name: str, tensor: torch.Tensor, phase: str, advice: str) -> int:
        found = level(tensor)
        if not found:
            return 0
        count = _count(tensor, found)
        mask = self._origins.add(
            ObservedOrigin(
                found,
                phase,
                None,
                CallSite(),
                Reason(_share(tensor, count), advice, count),
                deliberate=found == INF and only_negative(tensor),
                name=name,
                inputs=(measure(tensor),),
            )
        )
        self._origins.put(tensor, mask, overwritten=False)
        return mask


def _count(tensor: torch.Tensor, found: int) -> int | None:
    """Return the number of elements that are NaN or Inf; None for a sparse tensor."""
    return None if tensor.is_sparse else int(broken(tensor.detach(), found).sum())


def _share(tensor: torch.Tensor, count: int | None) -> str:
    return "some values" if count is None else f"{count} of {tensor.numel()} values"
