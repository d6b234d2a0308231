"""Gives each position of a sequence the target of its neighbour."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradscope.capture.hooks import replace
from gradscope.experiment.interventions._models import given_tensors, is_data, on_calls
from gradscope.experiment.interventions.one_batch import LOSSES
from gradscope.leaks.meaning import LABELS, role_named
from gradscope.training.replicas import batch_comes_first

#: Fewest positions of a sequence.
_POSITIONS = 4
#: Share of equal values, and correlation, from which targets are those of an input.
_EQUAL, _CORRELATED = 0.5, 0.9
#: Most columns of an input that are compared with the targets.
_COLUMNS = 64


def install(patches: ExitStack, notes: dict[str, Any], factor: float) -> None:
    """Shift the targets of loss functions by ``factor`` positions along each sequence.

    ``notes`` counts the "shifted" targets, and those that are "given": they equal an input, as the
    targets of a language model do after a shift by one.
    """
    notes.update(shifted=0, given=0)
    inputs: list[torch.Tensor] = []  # of the last call
    axes = [1]  # of the positions

    def call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        axes[0] = 1 if batch_comes_first(module) else 0
        inputs[:] = [
            tensor
            for name, tensor, _ in given_tensors(module, args, kwargs)
            if tensor.dim() > 1 and is_data(tensor) and role_named(name, tensor) != LABELS
        ]

    on_calls(patches, notes, call)
    for name in LOSSES:
        replace(patches, F, name, functools.partial(_shifted, int(factor), inputs, axes, notes))


def _shifted(
    shift: int,
    inputs: Sequence[torch.Tensor],
    axes: Sequence[int],
    notes: dict[str, Any],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Shift the targets of a loss function, if there is one target for each position."""

    @functools.wraps(original)
    def loss(input: Any, target: Any = None, *args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled() and getattr(input, "requires_grad", False)
        if not training or not isinstance(target, torch.Tensor) or not is_data(target):
            return original(input, target, *args, **kwargs)
        axis = axes[0]
        shapes = (_shape(target, one, axis) for one in inputs)
        shape = next(filter(None, shapes), None)
        if shape is None:
            return original(input, target, *args, **kwargs)
        moved = target.reshape(shape).roll(shift, axis)
        notes["shifted"] += 1
        notes["given"] += any(_is_given(moved, one, axis) for one in inputs)
        return original(input, moved.reshape(target.shape), *args, **kwargs)

    return loss


def _shape(target: torch.Tensor, given: torch.Tensor, axis: int) -> tuple[int, ...] | None:
    """Return the first two dimensions of targets, if there is one for each position of an input;
    the model may have dropped one position.
    """
    for dropped in (0, 1):
        shape = list(given.shape[:2])
        shape[axis] -= dropped
        if shape[axis] >= _POSITIONS and target.numel() == shape[0] * shape[1]:
            fits = target.dim() == 1 or list(target.shape[:2]) == shape
            return tuple(shape) if fits else None
    return None


def _is_given(moved: torch.Tensor, given: torch.Tensor, axis: int) -> bool:
    """Return True if the targets are a column of an input, or linear in it.

    The first and last position are left out, because the shift has no target for one of them.
    """
    moved, given = moved.movedim(axis, 0), given.movedim(axis, 0)
    inner = min(len(moved), len(given)) - 1
    targets, columns = moved[1:inner], given[1:inner]
    if targets.shape[1] != columns.shape[1]:
        return False
    columns = columns.reshape(*targets.shape, -1)[..., :_COLUMNS]
    if bool(((columns == targets[..., None]).double().mean((0, 1)) > _EQUAL).any()):
        return True
    if not (targets.is_floating_point() and columns.is_floating_point()):
        return False
    rows = torch.cat([targets.reshape(1, -1), columns.reshape(-1, columns.shape[-1]).T])
    related = torch.corrcoef(rows.double())[0, 1:].abs()
    return bool((related > _CORRELATED).any())
