"""Disables dropout in modules, in functions, and inside attention and RNNs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from gradscope.capture.hooks import replace
from gradscope.experiment.interventions._models import on_models

#: The functions of ``torch.nn.functional`` that drop activations.
FUNCTIONS = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout"),
)


def dropout_of(module: nn.Module) -> float:
    """Return the largest dropout probability in a module's attributes."""
    if isinstance(module, _DropoutNd):
        return float(module.p)
    values = [value for name, value in vars(module).items() if "drop" in name.lower()]
    numbers = [value for value in values if isinstance(value, float)]
    return max(numbers, default=0.0)


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Disable dropout in functions and modules."""
    for name in FUNCTIONS:
        replace(patches, F, name, _kept)
    replace(patches, F, "scaled_dot_product_attention", _attending)

    def switched_off(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0
            elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
                module.dropout = 0.0

    on_models(patches, switched_off)


def _kept(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dropout(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input

    return dropout


def _attending(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        # The fifth argument is `dropout_p`.
        args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return original(*args, **({**kwargs, "dropout_p": 0.0} if len(args) <= 4 else kwargs))

    return attention
