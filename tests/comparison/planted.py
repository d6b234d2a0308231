"""Faults: each changes one layer at random, and says which, and the code of what must be found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comparison.nets import drawn, layers, wrap

PRODUCTS = ("Linear", "Conv2d", "Conv1D")
NORMS = ("BatchNorm2d", "LayerNorm")
ACTIVATIONS = ("ReLU", "GELU", "NewGELUActivation")
Fault = Callable[[nn.Module, random.Random], tuple[str, str]]


class Scaled(torch.autograd.Function):
    """The same forward; backward is off by 1 %."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.01


class LinearOfMean(torch.autograd.Function):
    """A linear layer whose bias gets the mean over samples where the sum is meant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        return gradient @ weight, flat.T @ x.flatten(0, -2), flat.mean(0)


class StepActivation(torch.autograd.Function):
    """An activation whose backward takes its slope for that of a ReLU, and this for 0.99."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * 0.99 * (x > 0), None


def backward_off(model: nn.Module, coin: random.Random) -> tuple[str, str]:
    """A layer's backward is off by 1 %."""
    name, layer = drawn(coin, layers(model, *PRODUCTS, *NORMS), model)
    wrap(layer, lambda forward, x: Scaled.apply(forward(x)))
    return name, "GD102"


def in_bfloat16(model: nn.Module, coin: random.Random) -> tuple[str, str]:
    """A layer computes in bfloat16."""

    def narrow(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(x).to(x.dtype)

    name, layer = drawn(coin, layers(model, *PRODUCTS), model)
    wrap(layer, narrow)
    return name, "GD101"


def wrong_function(model: nn.Module, coin: random.Random) -> tuple[str, str]:
    """A custom ``autograd.Function`` with a wrong gradient is in the place of a layer."""
    linears = [n for n in layers(model, "Linear") if model.get_submodule(n).bias is not None]
    if linears and coin.random() < 0.5:
        name, layer = drawn(coin, linears, model)
        wrap(layer, lambda _, x: LinearOfMean.apply(x, layer.weight, layer.bias))
    else:
        name, layer = drawn(coin, layers(model, *ACTIVATIONS), model)
        if getattr(layer, "inplace", False):
            layer.inplace = False
        wrap(layer, lambda forward, x: StepActivation.apply(x, forward))
    return name, "GD102"


def transposed(model: nn.Module, coin: random.Random) -> tuple[str, str]:
    """A port, whose lists have other keys, with one square weight transposed."""
    names = [
        name
        for name in layers(model, *PRODUCTS)
        if model.get_submodule(name).weight.shape[0] == model.get_submodule(name).weight.shape[1]
    ]
    name, layer = drawn(coin, names, model)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.transpose(0, 1).clone())
    for module in model.modules():
        if type(module) in (nn.Sequential, nn.ModuleList):
            parts = dict(module._modules)
            module._modules.clear()
            module._modules.update({f"part{key}": part for key, part in parts.items()})
    return name, "GD101"


def another_epsilon(model: nn.Module, coin: random.Random) -> tuple[str, str]:
    """A norm's epsilon is 1e-6 in the place of 1e-5, or the reverse."""
    name, layer = drawn(coin, layers(model, *NORMS), model)
    layer.eps = 1e-6 if layer.eps == 1e-5 else 1e-5
    return name, "GD101"


FAULTS: tuple[Fault, ...] = (
    backward_off,
    in_bfloat16,
    wrong_function,
    transposed,
    another_epsilon,
)
