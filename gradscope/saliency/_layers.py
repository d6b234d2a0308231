"""Chooses the target layer by running the model, and runs passes with that layer, or the input, as
the leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradscope.capture.activation_maps import PASSING, POOLING, as_map, patch_grid
from gradscope.capture.hooks import changed, hookable_modules, hooked, select_layer
from gradscope.capture.names import module_names
from gradscope.errors import OptionError
from gradscope.nesting import find, replaced
from gradscope.saliency._forward import Forward

WITHOUT_LAYER = (
    "gradient, input-x-gradient, smooth-grad, integrated-gradients, occlusion and rise "
    "work on every model that takes pictures"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The target layer's name, and one sentence with the reason for the choice."""

    name: str
    description: str


@dataclass(slots=True)
class _Candidate:
    """One map that a call made: the module, the tensor's place in the graph, its form."""

    name: str
    edge: GradientEdge
    tokens: bool
    channels: int
    shape: tuple[int, int]
    fold: Callable[[Tensor], Tensor | None]


def named_layer(model: nn.Module, name: str) -> Choice:
    """Return the layer that the user names.

    Raises:
        LayerError: no layer has that name; the message names the closest.
        OptionError: several layers match the pattern.
    """
    chosen, _ = select_layer(model, name)
    return Choice(chosen, f"layer `{chosen}`, as asked")


def choose(forward: Forward, score: Callable[[Tensor], Tensor]) -> Choice:
    """Choose the last layer whose map the score depends on, by a run on the first image.

    Convolutional maps of any layer count. Token sequences count only at norm layers, and only if
    the score's gradient reaches the patches. If a transformer reads its class token, that gradient
    does not reach them after the last attention. For a segmentation, the choice is the last layer
    with the fewest positions (the bottleneck of a U-Net, as in Vinogradova et al. 2020, arXiv
    2002.11434), because the last maps are the answer itself.

    Raises:
        OptionError: the model has no spatial map.
    """
    model, inputs = forward.model, forward.pictures
    # A batch norm in train mode needs more than one value per channel.
    images = inputs if model.training else inputs[:1]
    x = images.detach().clone().requires_grad_()
    search = _Search(model, x)
    with torch.enable_grad(), hooked(search.modules, None, search.after):
        total = score(x).sum()
    found = forward.segmentation
    candidates = search.candidates
    if found is not None:
        candidates = _coarsest(candidates, found.shares.shape[1])
    kept = _first_that_counts(candidates, total)
    if kept is None:
        raise OptionError(
            "no layer of this model makes a spatial map that the score depends on",
            help=WITHOUT_LAYER,
        )
    rows, columns = kept.shape
    if found is not None:
        description = f"layer `{kept.name}`: the last one with the coarsest map"
    elif kept.tokens:
        description = f"layer `{kept.name}`: the last norm whose patches reach the score"
    else:
        description = f"layer `{kept.name}`: the last one with a spatial map"
    return Choice(kept.name, f"{description} ({rows} × {columns})")


def _coarsest(candidates: list[_Candidate], classes: int) -> list[_Candidate]:
    """Return the maps with the fewest positions, without those that have a channel for each
    class."""
    inner = [one for one in candidates if one.channels != classes] or candidates
    fewest = min((one.shape[0] * one.shape[1] for one in inner), default=0)
    return [one for one in inner if one.shape[0] * one.shape[1] == fewest]


def _first_that_counts(candidates: list[_Candidate], total: Tensor) -> _Candidate | None:
    """Return the last map that the score depends on."""
    reached = None  # the last norm, for a model whose gradients are all zero
    for candidate in reversed(candidates):
        if total.grad_fn is None:
            return None
        (gradient,) = torch.autograd.grad(
            total, [candidate.edge], retain_graph=True, allow_unused=True
        )
        if gradient is None:
            continue
        if not candidate.tokens:
            return reached or candidate
        reached = reached or candidate
        patches = candidate.fold(gradient)
        if patches is not None and bool(patches.any()):
            return candidate
    return reached


@dataclass(slots=True)
class _Search:
    """Hooks that note each new map and the module that made it."""

    model: nn.Module
    inputs: Tensor
    candidates: list[_Candidate] = field(default_factory=list)
    modules: list[nn.Module] = field(init=False)
    _names: dict[nn.Module, str] = field(init=False)
    _patches: tuple[int, int] | None = field(init=False)
    # The tensor that was noted last (its identity tells a new map from the same one passed on).
    _last: Tensor | None = None
    _pooled: Tensor | None = None
    _version: int = 0

    def __post_init__(self) -> None:
        self._names = module_names(self.model)
        self.modules = [m for m in hookable_modules(self.model) if m is not self.model]
        self._patches = patch_grid(self.model, self.inputs)

    def after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        found = [tensor for _, tensor in find(output, Tensor)]
        kind = type(module).__name__
        if not found or not found[0].requires_grad or any(word in kind for word in PASSING):
            return
        tensor, name = found[0], self._names[module]
        if any(word in kind for word in POOLING):
            # A container that ends in the pool returns the same tensor.
            self._pooled, self._version = tensor, tensor._version
        elif tensor is self._pooled and tensor._version == self._version:
            return
        elif tensor is self._last and self.candidates[-1].name.startswith(f"{name}."):
            if len(found) == 1:  # of several results, the score may read another
                # The container whose last layer made the map; it may have written into it since.
                self.candidates[-1].name, self.candidates[-1].edge = name, get_gradient_edge(tensor)
        else:
            self._note(module, name, tensor)

    def _note(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        tokens = tensor.dim() == 3
        if tokens and "Norm" not in type(module).__name__:
            return
        size = (self.inputs.shape[2], self.inputs.shape[3])

        def fold(output: Tensor) -> Tensor | None:
            return as_map(output, size, module=module, patches=self._patches, strict=True)

        folded = fold(tensor.detach())
        if folded is None:
            return
        shape = (folded.shape[2], folded.shape[3])
        if tensor is self._last:
            self.candidates.pop()  # changed in place: the former map is no more
        edge, channels = get_gradient_edge(tensor), folded.shape[1]
        self.candidates.append(_Candidate(name, edge, tokens, channels, shape, fold))
        self._last = tensor


#: Inputs [M, C, H, W] → the scores [M, classes] of a model.
Scores = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class LayerCall:
    """One call of the target layer: a copy of its output, and the tensor to differentiate by."""

    activation: Tensor
    by: Tensor | GradientEdge


@dataclass(slots=True)
class Pass:
    """One forward: the logits with their graph, the input, and the layer's calls."""

    logits: Tensor
    inputs: Tensor
    calls: list[LayerCall] = field(default_factory=list)

    def at_layer(self, score: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return activation and gradient of the layer's last call that the score depends on."""
        if not score.requires_grad or not self.calls:
            return None
        by: Any = [call.by for call in self.calls]
        gradients = torch.autograd.grad(score.sum(), by, retain_graph=True, allow_unused=True)
        for call, gradient in zip(reversed(self.calls), reversed(gradients), strict=True):
            if gradient is not None:
                return call.activation, gradient
        return None


def input_gradient(score: Tensor, inputs: Tensor, *, keep: bool) -> Tensor:
    """Return d score / d inputs; with ``keep``, the graph stays for another backward.

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
    """Run a forward whose graph starts at the layer's output; nothing upstream is recorded."""
    calls: list[LayerCall] = []
    with torch.enable_grad(), _as_leaf(layer, calls):
        logits = forward(inputs.clone())
    return Pass(logits, inputs, calls)


def from_input(forward: Scores, inputs: Tensor, layer: nn.Module | None = None) -> Pass:
    """Run a forward whose graph starts at ``inputs``, which must not be shared, and note the
    layer's calls.
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
        # Two copies: a later operation may write into the output, or into memory that it shares.
        # That must not change the activation to which the gradient belongs.
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
