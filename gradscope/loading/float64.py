"""Copies a workload to float64, where differences are not rounding."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gradscope.loading.inputs import Batch
from gradscope.loading.workload import Workload
from gradscope.nesting import replaced


def in_float64(workload: Workload) -> Workload:
    """Return the same workload with copies of the model, and of a loss that is a module.

    Exceptions (a model that cannot be copied) are left to the caller.
    """
    criterion = copy.copy(workload.criterion)
    if isinstance(criterion.spec, nn.Module):
        criterion.spec = copy.deepcopy(criterion.spec).double()
    criterion.target = widened(criterion.target)

    def batches() -> Iterator[Batch]:
        for batch in workload.batches():
            yield Batch(*widened((batch.args, batch.kwargs, batch.target)))

    return replace(
        workload,
        model=copy.deepcopy(workload.model).double(),
        batches=batches,
        criterion=criterion,
        dtype=torch.float64,
        autocast=None,
        gradient=widened(workload.gradient),
        live=False,
    )


def widened(tree: Any) -> Any:
    """Return the same nesting with floating tensors in float64, complex ones in complex128."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return tensor.detach().to(wide).requires_grad_(tensor.requires_grad)

    return replaced(tree, torch.Tensor, widen)
