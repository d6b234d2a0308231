"""The plain step, and the observed one on the live model: its gradients, and what it leaves."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import guards
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from truth.cases import Case, weighted_sum
from truth.steps import identical

import gradscope
from gradscope.records.json import to_data

SEED = 0
#: Without rules: what they find may be looked at in further steps, which are held to account apart.
ONE_STEP: dict[str, Any] = {"seed": SEED, "ignore": ("GS",)}

Gradients = dict[str, Tensor | None]


def plain_step(
    model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor] = weighted_sum
) -> Gradients:
    """The gradients of an unobserved step, taken on a copy."""
    model, inputs = copy.deepcopy(model), copy.deepcopy(inputs)
    args, kwargs = Case.arguments(inputs)
    seed_all()
    loss(model(*args, **kwargs)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def seed_all() -> None:
    """As gradscope seeds before each forward."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


class Observed:
    """A run of gradscope on the live model: its gradients on the way, and what it leaves behind."""

    def __init__(self, plain: Gradients) -> None:
        self.plain = plain
        self.different: list[str] = []
        self.left: list[str] = []

    def inspect(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """The report's data."""
        same = {name: gradient is None for name, gradient in self.plain.items()}

        def hook(name: str) -> Any:
            def look(parameter: Tensor) -> None:
                same[name] = identical(self.plain[name], parameter.grad)

            return look

        pending = [p for p in model.parameters() if p.requires_grad and p.is_leaf][:2]
        for parameter in pending:  # gradients of the caller's own, which must be there afterwards
            parameter.grad = torch.ones_like(parameter)
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        handles = [p.register_post_accumulate_grad_hook(hook(n)) for n, p in named]
        try:
            with hooks_counted() as set_here, guards.unchanged(model):
                report = gradscope.inspect(model, inputs, loss=weighted_sum, **ONE_STEP)
        except AssertionError as error:
            self.left.append(f"left behind: {error}")
            report = gradscope.inspect(model, inputs, loss=weighted_sum, **ONE_STEP)
        finally:
            for handle in handles:
                handle.remove()
            for parameter in pending:
                parameter.grad = None
        still = sum(guards.still_set(handle) for handle in set_here)
        if still:
            self.left.append(f"left behind: {still} of {len(set_here)} hooks")
        self.different = [name for name, agrees in same.items() if not agrees]
        data: dict[str, Any] = to_data(report)
        return data


@contextmanager
def hooks_counted() -> Iterator[list[RemovableHandle]]:
    """The handle of every hook that gradscope sets inside the block."""
    handles: list[RemovableHandle] = []
    original = RemovableHandle.__init__

    def recorded(self: RemovableHandle, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if guards.set_by_gradscope():
            handles.append(self)

    RemovableHandle.__init__ = recorded
    try:
        yield handles
    finally:
        RemovableHandle.__init__ = original
