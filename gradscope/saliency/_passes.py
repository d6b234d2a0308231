"""Forward passes: with the target layer as the leaf of the graph, or with the input as the leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradscope.capture.hooks import changed
from gradscope.errors import OptionError
from gradscope.nesting import find, replaced

#: Inputs [M, C, H, W] → the scores [M, classes] of a model.
Scores = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class LayerCall:
    """One call of the target layer: a copy of what it gave, and what to differentiate by."""

    activation: Tensor
    by: Tensor | GradientEdge


@dataclass(slots=True)
class Pass:
    """One forward: the logits with their graph, the input it started from, the layer's calls."""

    logits: Tensor
    inputs: Tensor
    calls: list[LayerCall] = field(default_factory=list)

    def at_layer(self, score: Tensor) -> tuple[Tensor, Tensor] | None:
        """Activation and gradient of the last call of the layer that the score depends on."""
        if not score.requires_grad or not self.calls:
            return None
        by: Any = [call.by for call in self.calls]
        gradients = torch.autograd.grad(score.sum(), by, retain_graph=True, allow_unused=True)
        for call, gradient in zip(reversed(self.calls), reversed(gradients), strict=True):
            if gradient is not None:
                return call.activation, gradient
        return None


def input_gradient(score: Tensor, inputs: Tensor, *, keep: bool) -> Tensor:
    """d score / d inputs; ``keep`` leaves the graph for another backward.

    Raises:
        OptionError: the score does not depend on the input through differentiable operations.
    """
    gradient = None
    if score.requires_grad:
        (gradient,) = torch.autograd.grad(score.sum(), inputs, retain_graph=keep, allow_unused=True)
    if gradient is None:
        raise OptionError(
            "no gradient reaches the model's input: the score is cut off from it",
            help="occlusion and rise need no gradient; `gradscope why MODEL` finds the cut",
        )
    return gradient


def above_layer(forward: Scores, inputs: Tensor, layer: nn.Module) -> Pass:
    """A forward whose graph begins at the layer's output: nothing below it is kept or recorded."""
    calls: list[LayerCall] = []
    with torch.enable_grad(), _as_leaf(layer, calls):
        logits = forward(inputs.clone())
    return Pass(logits, inputs, calls)


def from_input(forward: Scores, inputs: Tensor, layer: nn.Module | None = None) -> Pass:
    """A forward whose graph begins at ``inputs``, which are for it alone to mark.

    The layer's calls are noted on the way.
    """
    calls: list[LayerCall] = []
    x = inputs.detach().requires_grad_()
    noted = _noted(layer, calls) if layer is not None else nullcontext()
    with torch.enable_grad(), noted:
        # A copy: a model may normalise its input in place, which a leaf refuses.
        logits = forward(x.clone())
    return Pass(logits, x, calls)


@contextmanager
def _as_leaf(layer: nn.Module, calls: list[LayerCall]) -> Iterator[None]:
    def change(output: Any) -> Any:
        tensor = _map_in(output)
        if tensor is None:
            return output
        # Two copies: what comes later may write into the output or into what it shares memory
        # with, and neither may change the activation that the gradient belongs to.
        leaf = tensor.detach().clone().requires_grad_()
        with torch.enable_grad():
            given = leaf.clone()
        calls.append(LayerCall(leaf.detach(), leaf))
        return replaced(output, Tensor, lambda t: given if t is tensor else t)

    with changed(layer, change):
        yield


@contextmanager
def _noted(layer: nn.Module, calls: list[LayerCall]) -> Iterator[None]:
    def change(output: Any) -> Any:
        tensor = _map_in(output)
        if tensor is not None and tensor.requires_grad:
            calls.append(LayerCall(tensor.detach().clone(), get_gradient_edge(tensor)))
        return output

    with changed(layer, change):
        yield


def _map_in(output: Any) -> Tensor | None:
    return next((t for _, t in find(output, Tensor) if t.is_floating_point()), None)
