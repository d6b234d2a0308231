"""The calls of a step as it is, before any probe is added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import call_tensors
from gradscope.capture.hooks import hooked, watchable
from gradscope.capture.names import named_modules, named_parameters
from gradscope.capture.recompute import in_backward
from gradscope.comparison.alignment import CallKey
from gradscope.errors import GradscopeError
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.running.rerun import rerun
from gradscope.running.step import GraphRoot, Observer, Step

#: Of each parameter; None where none arrived.
Gradients = dict[str, torch.Tensor | None]


@dataclass(slots=True)
class PlainCall:
    """One call.

    Attributes:
        parent: the call around it; None for the outermost.
        leaf: whether no other call runs inside.
        writes: whether it writes to what it was given.
        shapes: of the tensors that it returned.
    """

    key: CallKey
    type: str
    parent: CallKey | None
    leaf: bool = True
    writes: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PlainStep:
    """Calls in the order in which they began; the loss, and the parameters' gradients."""

    calls: dict[CallKey, PlainCall]
    loss: torch.Tensor
    parameters: Gradients


@dataclass(kw_only=True)
class LossRecorder(Observer):
    """Keeps what backward starts from, and says when it is there."""

    arm: Callable[[], None] = lambda: None
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros(()))

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        """Forward is done."""
        assert isinstance(root, torch.Tensor)
        self.loss = root.detach().clone()
        self.arm()
        return super().leaves(step, root)


class StepFailed(Exception):
    """A step raised, which is the cause; ``phase`` says in which part, ``notes`` what else."""

    def __init__(self, workload: Workload, phase: str, *notes: str) -> None:
        super().__init__(phase)
        self.workload, self.phase, self.notes = workload, phase, notes


def plain_step(workload: Workload, number: int = 0) -> PlainStep:
    """Run a step as it is; then everything is as it was.

    Raises:
        StepFailed: the model, its loss or its backward raised.
    """
    model, observer = workload.model, LossRecorder()
    calls = _Calls({module: named.name for module, named in named_modules(model).items()})
    try:
        with (
            rerun(workload, number, observer=observer) as step,
            hooked(watchable(model), calls.before, calls.after),
        ):
            step.compute_gradients()
            return PlainStep(calls.found, observer.loss, gradients_of(model))
    except GradscopeError:
        raise
    except Exception as failure:
        raise StepFailed(workload, observer.phase) from failure


def gradients_of(model: nn.Module) -> Gradients:
    """A copy of each parameter's gradient."""
    return {
        named.name: None if p.grad is None else p.grad.detach().clone()
        for p, named in named_parameters(model).items()
    }


class _Calls:
    """Notes calls, and the versions of their arguments before and after."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self.found: dict[CallKey, PlainCall] = {}
        self._names = names
        self._counts: Counter[str] = Counter()
        self._running: list[tuple[nn.Module, PlainCall, list[tuple[torch.Tensor, int]]]] = []

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A call begins."""
        if in_backward() or module not in self._names:
            return
        name = self._names[module]
        parent = self._running[-1][1] if self._running else None
        call = PlainCall(
            (name, self._counts[name]), type(module).__name__, parent.key if parent else None
        )
        self._counts[name] += 1
        if parent is not None:
            parent.leaf = False
        self.found[call.key] = call
        given = [(t, t._version) for _, t in call_tensors(args, kwargs) if not t.is_inference()]
        self._running.append((module, call, given))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """It returns."""
        if in_backward() or module not in self._names:
            return
        while self._running:
            begun, call, given = self._running.pop()  # one that is not this module's has raised
            if begun is module:
                call.writes = any(t._version != version for t, version in given)
                call.shapes = tuple(tuple(t.shape) for _, t in find(output, torch.Tensor))
                return
