"""The gradient's norm over parts of a sampled step's batch: its micro-batches, or the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from gradscope.capture.hooks import Handle, hook_node_before
from gradscope.records.tensors import finite_or_none
from gradscope.records.training import GradientParts
from gradscope.training.current_step import CurrentStep
from gradscope.training.guard import Guard
from gradscope.training.models import Model
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.replicas import batch_size, ddp_around


def micro_batches(
    current: CurrentStep, calls: Iterable[RecordedCall], held: Collection[nn.Parameter]
) -> GradientParts | None:
    """Return the parts of a step whose backwards add up the gradients of micro-batches.

    None if they may be something else: other losses, other models, or batches of other sizes. Each
    call of a micro-batch has its backward; the caller knows that all come from one line.
    """
    sums = current.sums
    if len(sums) < 2 or len(sums) != len(current.losses) or current.summed is not None:
        return None
    if current.divisor != 1.0 or not current.gradients.norms.keys() <= set(held):
        return None
    found = [call for call in calls if call.returned and call.arrived]
    made = {
        (call.module, batch_size(call.args, call.kwargs), len(backwards))
        for call in found
        for backwards in call.nodes.values()
    }
    if len(found) != len(sums) or len(made) != 1:
        return None
    _, size, backwards = made.pop()
    if not size or backwards != 1 or not all(map(math.isfinite, sums)):
        return None
    return GradientParts(size, sums=tuple(one / (current.scale or 1.0) for one in sums))


class LocalNorms:
    """The norm of this rank's own gradient in one step, before DDP averages it over the ranks.

    Args:
        models: the step's models; without DDP around them, nothing is read.
        guard: makes functions of the hooks that never raise.
    """

    def __init__(self, models: Sequence[Model], guard: Guard) -> None:
        self._squares: dict[nn.Parameter, list[torch.Tensor]] = {}
        self._hooks: list[Handle] = []
        self._nodes = []
        for model in models:
            outer = model.outer()
            if outer is None or ddp_around(outer) is None:
                continue
            for parameter in model.module.parameters():
                if parameter.requires_grad:
                    squares = self._squares[parameter] = []
                    node = get_gradient_edge(parameter).node
                    self._nodes.append(node)  # which PyTorch holds weakly
                    self._hooks.append(hook_node_before(node, guard(_adding(squares))))

    def parts(self, current: CurrentStep, held: Collection[nn.Parameter]) -> GradientParts | None:
        """Return the part of this rank, after one backward; None if there were several."""
        several = [squares for p, squares in self._squares.items() if p in held and squares]
        if not several or any(len(squares) > 1 for squares in several) or not current.batch:
            return None
        if len(current.losses) != 1:
            return None
        total = sum(float(square) for squares in several for square in squares)
        norm = finite_or_none(math.sqrt(total) / (current.scale or 1.0))
        return None if norm is None else GradientParts(current.batch, ranks=(norm,))

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._nodes, self._squares = [], [], {}


def _adding(squares: list[torch.Tensor]) -> Callable[[Sequence[torch.Tensor | None]], None]:
    """Return a hook that adds the square of a gradient's norm to a list."""

    def add(gradients: Sequence[torch.Tensor | None]) -> None:
        gradient = gradients[0]
        if gradient is not None and gradient.layout == torch.strided:
            norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float64)
            squares.append(norm.square())

    return add
