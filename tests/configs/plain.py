"""Plain PyTorch, as a user would write it: what a step does, without gradscope.

A ``Trace`` keeps the tensors that a hand-written forward pass names, and after backward describes
each with its gradient. Reductions are in float64, straight from the definitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Facts = dict[str, Any]


def seed(number: int = 0) -> None:
    """Seed as a run does before construction, before inputs and before each forward."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def describe(tensor: Tensor | None, *, values: bool = False) -> Facts | None:
    """A tensor's shape, norm, mean and standard deviation, or its values."""
    if tensor is None:
        return None
    wide = tensor.detach().double()
    facts: Facts = {"shape": list(tensor.shape)}
    if values:
        return {**facts, "values": wide.flatten().tolist()}
    return {
        **facts,
        "norm": float(wide.square().sum().sqrt()),
        "mean": float(wide.mean()),
        "std": float((wide - wide.mean()).square().mean().sqrt()),
        "zeros": int((wide == 0).sum()),
    }


class Trace:
    """Tensors by the name that a report gives them."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Facts]] = {}
        self._kept: list[tuple[Facts, Tensor]] = []

    def output(
        self, name: str, tensor: Tensor, *, kind: str, path: str = "", **inputs: Tensor
    ) -> Tensor:
        """Note a module's call: its class, its output at ``path``, its inputs by path."""
        call: Facts = {"type": kind, "inputs": {}, "outputs": {}}
        self._calls.setdefault(name, []).append(call)
        for place, given in inputs.items():
            call["inputs"][place.lstrip("_")] = self._keep(given)
        call["outputs"][path] = self._keep(tensor)
        return tensor

    def _keep(self, tensor: Tensor) -> Facts:
        # The copy is what gradscope has to show: the tensor as it was now.
        facts: Facts = {"activation": describe(tensor)}
        if tensor.requires_grad:
            tensor.retain_grad()
        self._kept.append((facts, tensor))
        return facts

    def calls(self) -> Facts:
        """After backward: every noted call, with gradients."""
        for facts, tensor in self._kept:
            facts["gradient"] = describe(tensor.grad)
        return self._calls


def parameters(model: nn.Module, before: Mapping[str, Tensor] | None = None) -> Facts:
    """Each parameter's gradient, and how far it moved from its value before the step."""
    found: Facts = {}
    for name, parameter in model.named_parameters():
        facts: Facts = {"shape": list(parameter.shape), "gradient": None}
        if parameter.grad is not None:
            facts["gradient"] = {"norm": float(parameter.grad.double().norm())}
        if before is not None:
            old = before[name].double()
            moved = float((parameter.detach().double() - old).norm())
            facts["update_ratio"] = moved / float(old.norm()) if float(old.norm()) else None
        found[name] = facts
    return found


def values(model: nn.Module) -> dict[str, Tensor]:
    """A copy of each parameter."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def totals(model: nn.Module) -> Facts:
    """Counts, and the norm of the full gradient."""
    grads = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "gradient_norm": float(torch.stack(grads).sum().sqrt()) if grads else None,
    }


def step(
    build: Callable[[], nn.Module],
    inputs: Callable[[], Any],
    loss: Callable[[Any], Tensor],
    *,
    outputs: Callable[[Any], Mapping[str, Tensor]] = lambda output: {"": output},
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    train: bool = True,
) -> Facts:
    """One step of a full model: its loss, its outputs and its parameters' gradients.

    ``inputs`` gives the positional arguments as a tuple or the keyword arguments as a dict.
    """
    seed()
    model = build().train(train)
    seed()
    given = inputs()
    before = values(model)
    seed()
    output = model(**given) if isinstance(given, dict) else model(*given)
    shown = {path: {"activation": describe(tensor)} for path, tensor in outputs(output).items()}
    value = loss(output)
    value.backward()
    facts: Facts = {"loss": value.item(), "totals": totals(model)}
    if optimizer is not None:
        optimizer(model.parameters()).step()
    facts["calls"] = {"": [{"outputs": shown}]}
    facts["parameters"] = parameters(model, before if optimizer is not None else None)
    return facts
