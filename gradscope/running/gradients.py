"""Measures the parameters' gradients and the loss of steps; with several losses, the gradients of
each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.facts import misspelt_flags
from gradscope.capture.graph import edge_of, free_nodes, walk
from gradscope.capture.names import named_modules, named_parameters
from gradscope.capture.parameters import any_nonfinite, statistics
from gradscope.capture.recorder import Recorder
from gradscope.capture.stats import Measured, head_of, measure, resolve
from gradscope.loading.workload import Workload
from gradscope.records.full_samples import SharedLayer, TaskGradients
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.run import LossPart
from gradscope.records.tensors import TensorStats, finite_or_none
from gradscope.running.step import GraphRoot, Observer, Step, run

#: The loss of a micro-batch under "", and by name the several losses that it is the sum of, if any.
Losses = dict[str, Measured]
#: A number, or the kind of NaN or Inf in its place; None and None for a value of several elements.
Value = tuple[float | None, str | None]


def read_losses(batches: Sequence[Losses]) -> tuple[Value, tuple[LossPart, ...]]:
    """Return the loss over all micro-batches, read at once from its device, and its parts."""
    read = resolve(one for losses in batches for one in losses.values())
    found = {name: _total([_value(read[id(one[name])]) for one in batches]) for name in batches[0]}
    full = found.pop("")
    # The loss itself was divided by the number of micro-batches.
    parts = (
        LossPart(name, None if value is None else value / len(batches), nonfinite)
        for name, (value, nonfinite) in found.items()
    )
    return full, tuple(parts)


def loss_value(loss: torch.Tensor) -> Value:
    """Return the loss as a number, or the kind of NaN or Inf that it is."""
    measured = measured_loss(loss)
    return _value(resolve([measured])[id(measured)])


def measured_loss(loss: torch.Tensor) -> Measured:
    """Return the loss for ``resolve`` to read with the rest."""
    plain = type(loss) is torch.Tensor and loss.layout == torch.strided
    if plain or loss.numel() != 1 or loss.is_complex() or loss.device.type == "meta":
        return measure(loss)
    # A subclass may hide what it wraps from all but `item`.
    return measure(torch.tensor(float(loss.detach().item()), dtype=torch.float64, device="cpu"))


def _value(loss: TensorStats) -> Value:
    if loss.numel != 1 or not loss.values:
        return None, None
    (value,) = loss.values
    if isinstance(value, tuple):  # complex
        return None, None
    return (None, value) if isinstance(value, str) else (float(value), None)


def _total(values: Sequence[Value]) -> Value:
    """Return the sum over micro-batches, or the kind of NaN or Inf in one of them."""
    nonfinite = next((kind for _, kind in values if kind is not None), None)
    numbers = [value for value, _ in values if value is not None]
    return (sum(numbers) if len(numbers) == len(values) else None), nonfinite


@dataclass(kw_only=True)
class GradientObserver(Observer):
    """Observes the gradients of the last step that began, complete or not.

    Attributes:
        modules: names of modules whose ``calls`` are recorded too.
        complete: True if the step ended, so that a missing gradient stays missing.
        first_nonfinite: the number of the first step whose loss or gradients were NaN or Inf.
    """

    modules: frozenset[str]
    parameters: tuple[ParameterStats, ...] = ()
    calls: tuple[ModuleCall, ...] = ()
    complete: bool = False
    first_nonfinite: int | None = None
    _loss_is_finite: bool = True
    _nodes: list[Node] = field(default_factory=list)

    def before_step(self, step: Step) -> None:
        model = step.workload.model
        self.complete = False
        asked = {m: n for m, n in named_modules(model).items() if n.name in self.modules}
        self.recorder = Recorder(model, asked, accumulate=step.workload.repeats > 1)

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        assert self.recorder is not None
        assert isinstance(root, torch.Tensor)
        self.complete = not root.requires_grad
        if step.workload.steps > 1:
            self._loss_is_finite = loss_value(root)[1] is None
        if self.modules:
            self.recorder.connect([root], {id(t): name for name, t in step.named_inputs})
        walked = walk([edge_of(root)] if root.requires_grad else [], set())
        self._nodes = walked.nodes
        return walked.leaves

    def after_backward(self, step: Step) -> None:
        assert self.recorder is not None
        self.complete = True
        self.recorder.free_nodes()
        free_nodes(self._nodes)
        self.calls = self.recorder.calls()
        self.parameters = _parameters(step.workload.model)
        bad = not self._loss_is_finite or any_nonfinite(p.gradient for p in self.parameters)
        if bad and self.first_nonfinite is None:
            self.first_nonfinite = step.number

    def wants_update(self, step: Step) -> bool:
        """Return False after the last step: its gradients are the answer."""
        return step.number + 1 < step.workload.steps

    def around_update(self, step: Step) -> AbstractContextManager[None]:
        self.complete = False
        return nullcontext()

    def after_run(self, workload: Workload) -> None:
        if self.failure is not None:
            self.parameters = _parameters(workload.model)


def observe_gradients(workload: Workload, modules: Collection[str]) -> GradientObserver:
    """Run the steps. An exception, of the user's code or Ctrl-C, is found in ``failure``.

    Args:
        workload: the workload.
        modules: names of modules whose calls are recorded too.
    """
    observer = GradientObserver(modules=frozenset(modules))
    run(workload, observer)
    return observer


def _parameters(model: nn.Module) -> tuple[ParameterStats, ...]:
    """Return every parameter with its gradient's statistics; its values are not read."""
    named = named_parameters(model)
    gradients = statistics({each.name: p.grad for p, each in named.items()})
    return tuple(
        ParameterStats(
            name=each.name,
            shape=tuple(p.shape),
            requires_grad=p.requires_grad,
            value=head_of(p),
            gradient=gradients[each.name],
            aliases=each.aliases,
            misspelt=misspelt_flags(p),
        )
        for p, each in named.items()
    )


#: The gradient of each loss for one parameter; None if the loss does not reach it.
_Gradients = Sequence[torch.Tensor | None]


def task_gradients(step: Step) -> TaskGradients | None:
    """Return the gradients of each loss in the step's sum of losses; None if there is only one.

    Forward runs once, and backward once for each loss; no ``.grad`` is written.
    """
    step.forward()
    losses, step.losses = step.losses, {}
    if len(losses) < 2:
        return None
    model = step.workload.model
    owners = {
        parameter: named.name
        for module, named in named_modules(model).items()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    }
    by_task = [
        torch.autograd.grad(loss, list(owners), torch.ones_like(loss), True, allow_unused=True)
        for loss in losses.values()
    ]
    pairs = tuple(itertools.combinations(range(len(losses)), 2))
    layers: dict[str, list[_Gradients]] = {}
    alone: dict[str, str] = {}
    for owner, of in zip(owners.values(), zip(*by_task, strict=True), strict=True):
        reached = [name for name, gradient in zip(losses, of, strict=True) if gradient is not None]
        if len(reached) > 1:
            layers.setdefault(owner, []).append(of)
        elif reached:
            alone.setdefault(owner, reached[0])
    shared = [_layer(name, of, pairs) for name, of in layers.items()]
    everything = [one for of in layers.values() for one in of]
    return TaskGradients(
        tasks=tuple(losses),
        pairs=pairs,
        total=_layer(None, everything, pairs, tasks=len(losses)),
        layers=tuple(shared),
        alone=tuple((owner, task) for owner, task in alone.items() if owner not in layers),
    )


def _layer(
    name: str | None,
    parameters: Sequence[_Gradients],
    pairs: Sequence[tuple[int, int]],
    *,
    tasks: int = 0,
) -> SharedLayer:
    """Return the gradients of several parameters as one vector for each loss."""
    tasks = len(parameters[0]) if parameters else tasks
    norms = [_norm([of[task] for of in parameters]) for task in range(tasks)]
    cosines = [_cosine(parameters, norms, pair) for pair in pairs]
    numel = sum(next(g.numel() for g in of if g is not None) for of in parameters)
    return SharedLayer(name, numel, tuple(norms), tuple(cosines))


def _norm(gradients: _Gradients) -> float | None:
    found = [g for g in gradients if g is not None]
    if not found:
        return None
    norm = math.hypot(*(float(torch.linalg.vector_norm(_dense(g))) for g in found))
    return finite_or_none(norm)


def _cosine(
    parameters: Sequence[_Gradients], norms: Sequence[float | None], pair: tuple[int, int]
) -> float | None:
    """Return the cosine over all parameters; a parameter that only one loss reaches adds nothing to
    the product."""
    one, other = pair
    first, second = norms[one], norms[other]
    if not first or not second:
        return None
    products = [
        # Scaled first, so that the product of two small gradients is not zero in any dtype.
        float(torch.sum((_dense(a) / first).conj() * (_dense(b) / second)).real)
        for of in parameters
        for a, b in [(of[one], of[other])]
        if a is not None and b is not None
    ]
    return max(-1.0, min(1.0, math.fsum(products))) if products else None


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)
