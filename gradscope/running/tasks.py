"""The gradients of several losses, each alone: where they meet, how long and how alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from gradscope.capture.names import named_modules
from gradscope.records.full_samples import SharedLayer, TaskGradients
from gradscope.running.step import Step

#: Of one parameter the gradient of each loss; None where the loss does not reach it.
_Gradients = Sequence[torch.Tensor | None]


def task_gradients(step: Step) -> TaskGradients | None:
    """The gradients of each loss that the step's loss is computed of; None where it is one.

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
    """The gradients of several parameters as one vector for each loss."""
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
    return norm if math.isfinite(norm) else None


def _cosine(
    parameters: Sequence[_Gradients], norms: Sequence[float | None], pair: tuple[int, int]
) -> float | None:
    """Over all parameters; one that only one of the two reaches adds nothing to the product."""
    one, other = pair
    first, second = norms[one], norms[other]
    if not first or not second:
        return None
    products = [
        # Scaled first: the product of two small gradients is zero in no dtype then.
        float(torch.sum((_dense(a) / first).conj() * (_dense(b) / second)).real)
        for of in parameters
        for a, b in [(of[one], of[other])]
        if a is not None and b is not None
    ]
    return max(-1.0, min(1.0, math.fsum(products))) if products else None


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)
