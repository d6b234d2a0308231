"""Repeats a step of a run: for a full sample, for its calls, for its saved memory.

It also proves harmlessness: two plain steps and an observed one, with the same seeds, must agree
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall, ModuleCalls, call_tensors
from gradscope.capture.graph import SavedBytes
from gradscope.capture.hooks import hookable_modules
from gradscope.capture.names import first_names, module_names, named_parameters
from gradscope.capture.saved_memory import counting_saved
from gradscope.comparison.alignment import CallKey
from gradscope.errors import GradscopeError, first_line
from gradscope.loading.optimizers import RATE
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.records.run import Verification
from gradscope.running.state import post_accumulate_hooks_disabled, same_bits
from gradscope.running.step import (
    GraphRoot,
    Observer,
    Step,
    as_found,
    cloned_batch,
    repeated,
    steps,
    zero_gradients,
)


@contextmanager
def rerun(
    workload: Workload,
    number: int = 0,
    *,
    observer: Observer | None = None,
    weights: bool | None = True,
    hooks: bool = False,
) -> Iterator[Step]:
    """Yield a step of the run, with the model in its state before that step; then restore all
    state.

    Args:
        workload: the workload of the run.
        number: the number of the step; the steps before it run first.
        observer: observes all these steps.
        weights: as for ``as_found``.
        hooks: also call hooks that wait for complete gradients.
    """
    with ExitStack() as kept:
        kept.enter_context(as_found(workload, weights=weights))
        if not hooks:
            kept.enter_context(post_accumulate_hooks_disabled(workload.model))
        run = kept.enter_context(closing(steps(workload, observer)))
        for step in run:
            if step.number == number:
                yield step
                return
            step.run()


@dataclass(kw_only=True)
class StepNames(Observer):
    """Reports the name of each step, and of each of its backwards, as it begins."""

    begins: Callable[[str], None]

    def before_step(self, step: Step) -> None:
        self.begins(self._name(step))

    def around_backward(self, step: Step, repeat: int) -> AbstractContextManager[None]:
        repeats = [f"repeat {repeat + 1}"] if step.workload.repeats > 1 else []
        self.begins(" of ".join(filter(None, [*repeats, self._name(step)])))
        return nullcontext()

    @staticmethod
    def _name(step: Step) -> str:
        return f"step {step.number + 1}" if step.workload.steps > 1 else ""


class StepsUntilGradient:
    """Makes optimizer steps, one after another, to see whether zero gradients stay zero.

    Each call makes one step and checks again. The first uses the gradients that a run of ``step``
    left.
    """

    def __init__(self, step: Step, names: Sequence[str]) -> None:
        self.step, self.names = step, names

    def __call__(self) -> Collection[str] | None:
        """Return the names whose gradient is still zero; None if no step could be made."""
        model = self.step.workload.model
        parameters = dict(first_names(model))
        try:
            self._update()
            zero_gradients(model)
            batch = next(self.step.following, self.step.batch)
            with ExitStack() as kept:
                step = replace(self.step, batch=batch, clone=cloned_batch(batch), kept=kept)
                step.compute_gradients()
            self.step = replace(self.step, batch=batch)
        except Exception:
            # The optimizer cannot make this step, so the answer stays unknown.
            return None
        gradients = {name: parameters[name].grad for name in self.names}
        return [name for name, g in gradients.items() if g is None or not _any(g)]

    def _update(self) -> None:
        if self.step.optimizer is not None:
            self.step.update()
            return
        # SGD by hand: PyTorch's own would load its compiler first, which takes a second.
        with torch.no_grad():
            for parameter in self.step.workload.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=RATE)


def _any(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.layout == torch.sparse_coo else gradient
    return bool(((values != 0) & ~values.isnan()).any())


def count_saved(step: Step, notices: list[str]) -> SavedBytes | None:
    """Return the bytes that one forward saves, counted by hooks; a notice and None on failure."""
    try:
        with repeated(step, weights=True) as plain, counting_saved(step.workload.model) as saved:
            plain.forward()
    except Exception as error:
        # `torch.func`, for example, forbids hooks on saved tensors; the report then lacks these
        # bytes.
        first = first_line(error)
        notices.append(f"saved bytes: not counted: {first}")
        return None
    return saved


_StepGradients = list[torch.Tensor | None]


def plain_gradients(step: Step) -> _StepGradients:
    """Return the results of one run of a step without an observer; then restore all state."""
    with repeated(step, weights=True) as plain:
        plain.compute_gradients()
        return gradients(plain)


def gradients(step: Step) -> _StepGradients:
    """Return the ``.grad`` of every parameter and every input."""
    tensors = [*step.workload.model.parameters(), *step.inputs.values()]
    return [t.grad for t in tensors if t.is_leaf]


class Verifier:
    """Compares observed gradients with a plain step's; tests first if plain steps agree."""

    def __init__(self, plain_step: Callable[[], _StepGradients]) -> None:
        self._first = plain_step()
        self._repeatable = _difference(self._first, plain_step()) == 0.0

    def compare(self, observed: _StepGradients) -> Verification:
        """Return the verdict on the observed step."""
        difference = _difference(self._first, observed)
        return Verification(self._repeatable, difference == 0.0, difference)


def _difference(left: _StepGradients, right: _StepGradients) -> float | None:
    """Return the largest absolute difference: 0.0 only if every bit agrees, None if it cannot be
    measured."""
    largest = 0.0
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            if one is not other:
                return None
            continue
        one, other = (t.to_dense() if t.layout != torch.strided else t for t in (one, other))
        if one.shape != other.shape or one.dtype != other.dtype:
            return None
        if same_bits(one, other):
            continue
        wide = torch.complex128 if one.is_complex() else torch.float64
        difference = (one.to(wide) - other.to(wide)).abs()
        if not bool(torch.isfinite(difference).all()):
            return None
        largest = max(largest, difference.max().item(), torch.finfo(torch.float64).tiny)
    return largest


#: The gradient of each parameter; None if none arrived.
Gradients = dict[str, torch.Tensor | None]


@dataclass(slots=True)
class PlainCall:
    """One call.

    Attributes:
        parent: the call around it; None for the outermost.
        leaf: True if no other call runs inside.
        writes: True if it writes to its input.
        shapes: the shapes of the tensors that it returned.
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
    """Keeps the root of backward, and reports when it exists."""

    arm: Callable[[], None] = lambda: None
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        """Note the end of forward."""
        assert isinstance(root, torch.Tensor)
        self.loss = root.detach().clone()
        self.arm()
        return super().leaves(step, root)


class StepFailed(Exception):
    """A step raised: the exception is the cause, ``phase`` its part, ``notes`` further facts."""

    def __init__(self, workload: Workload, phase: str, *notes: str) -> None:
        super().__init__(phase)
        self.workload, self.phase, self.notes = workload, phase, notes


def plain_step(workload: Workload, number: int = 0) -> PlainStep:
    """Run a step without changes; then restore everything.

    Raises:
        StepFailed: the model, its loss or its backward raised.
    """
    model, observer = workload.model, LossRecorder()
    calls = _Calls(model)
    try:
        with (
            rerun(workload, number, observer=observer) as step,
            calls.observed(),
        ):
            step.compute_gradients()
            return PlainStep(calls.found, observer.loss, gradients_of(model))
    except GradscopeError:
        raise
    except Exception as failure:
        raise StepFailed(workload, observer.phase) from failure


def gradients_of(model: nn.Module) -> Gradients:
    """Return a copy of each parameter's gradient."""
    return {
        named.name: None if p.grad is None else p.grad.detach().clone()
        for p, named in named_parameters(model).items()
    }


class _Calls:
    """Notes calls, and the versions of their arguments before and after."""

    def __init__(self, model: nn.Module) -> None:
        self.found: dict[CallKey, PlainCall] = {}
        self._model, self._calls = model, ModuleCalls(module_names(model))
        self._given: dict[ModuleCall, list[tuple[torch.Tensor, int]]] = {}

    def observed(self) -> AbstractContextManager[None]:
        """Note the calls in the block."""
        modules = hookable_modules(self._model)
        return self._calls.observed(modules, self._before, self._after)

    def _before(self, call: ModuleCall, args: Any, kwargs: Any) -> None:
        around = self._calls.around(call)
        parent = None if around is None else self.found[around.name, around.number]
        key = call.name, call.number
        self.found[key] = PlainCall(key, type(call.module).__name__, parent.key if parent else None)
        if parent is not None:
            parent.leaf = False
        self._given[call] = [
            (t, t._version) for _, t in call_tensors(args, kwargs) if not t.is_inference()
        ]

    def _after(self, call: ModuleCall, output: Any) -> None:
        """Note whether a call wrote to its arguments."""
        found = self.found[call.name, call.number]
        found.writes = any(t._version != version for t, version in self._given.pop(call))
        found.shapes = tuple(tuple(t.shape) for _, t in find(output, torch.Tensor))
