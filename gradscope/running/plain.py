"""The user's step as it is: a batch of its own, forward, loss, backward, with nobody watching."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gradscope.capture.calls import call_tensors
from gradscope.capture.graph import edge_of, walk
from gradscope.capture.saved import counting_saved
from gradscope.loading import Batch, Workload, seed_everything
from gradscope.nesting import replaced
from gradscope.running.state import gradients_kept, kept_as_found
from gradscope.running.verification import Gradients


def fresh(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Arguments, keyword arguments and target on tensors of their own.

    What the model or the loss writes into them stays in the run.
    """

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    args, kwargs, target = replaced((batch.args, batch.kwargs, batch.target), torch.Tensor, copy)
    return args, kwargs, target


def loss_of(
    workload: Workload, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any
) -> torch.Tensor:
    """Seeded forward and loss."""
    seed_everything(workload.seed)
    with autocast(workload):
        return workload.criterion(workload.model(*args, **kwargs), target)


def backward(loss: torch.Tensor, workload: Workload) -> None:
    """One backward, with the external gradient in the loss's own dtype, device and shape."""
    gradient = workload.gradient
    if gradient is not None:
        gradient = torch.as_tensor(gradient, dtype=loss.dtype, device=loss.device)
        gradient = gradient.expand_as(loss) if gradient.dim() == 0 else gradient
    loss.backward(gradient, retain_graph=workload.retain_graph)  # type: ignore[no-untyped-call]


def autocast(workload: Workload) -> AbstractContextManager[Any]:
    """The configured autocast around forward and loss."""
    if workload.autocast is None:
        return nullcontext()
    return torch.autocast(workload.device.type, dtype=workload.autocast)


def plain_step(workload: Workload, batch: Batch) -> Gradients:
    """The gradients of one step; everything is then as it was before."""
    args, kwargs, target = fresh(batch)
    with contextlib.ExitStack() as kept:
        kept.enter_context(kept_as_found(workload.model, weights=True))
        loss = loss_of(workload, args, kwargs, target)
        kept.enter_context(gradients_kept(foreign_leaves(loss, workload, args, kwargs)))
        for _ in range(workload.repeats):
            backward(loss, workload)
        return gradients(workload, args, kwargs)


def foreign_leaves(
    loss: torch.Tensor, workload: Workload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """What backward would leave a gradient in beside the parameters and the inputs."""
    if not loss.requires_grad:
        return []
    own = {*workload.model.parameters(), *(t for _, t in call_tensors(args, kwargs))}
    return [leaf for leaf in walk([edge_of(loss)], set()).leaves if leaf not in own]


def gradients(workload: Workload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gradients:
    """``.grad`` of every parameter and every input."""
    tensors = [*workload.model.parameters(), *(t for _, t in call_tensors(args, kwargs))]
    return [t.grad for t in tensors if t.is_leaf]


def take_step(optimizer: torch.optim.Optimizer, workload: Workload, batch: Batch) -> None:
    """The optimizer's step on the gradients that there are; one that wants the loss computes it."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        closure_step(optimizer, workload, batch)
    else:
        optimizer.step()


def closure_step(optimizer: torch.optim.Optimizer, workload: Workload, batch: Batch) -> None:
    """A step of an optimizer that evaluates the loss itself, as LBFGS does."""

    def closure() -> torch.Tensor:
        args, kwargs, target = fresh(batch)
        for parameter in workload.model.parameters():
            parameter.grad = None
        with torch.enable_grad():
            loss = loss_of(workload, args, kwargs, target)
            backward(loss, workload)
        return loss.detach()

    optimizer.step(closure)  # type: ignore[arg-type]  # LBFGS takes a tensor too


def count_saved(workload: Workload, batch: Batch) -> Any:
    """The bytes that one forward saves for backward, counted by hooks."""
    args, kwargs, target = fresh(batch)
    with kept_as_found(workload.model, weights=True), counting_saved(workload.model) as saved:
        loss_of(workload, args, kwargs, target)
    return saved
