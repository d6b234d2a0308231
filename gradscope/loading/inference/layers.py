"""Infers the input of a custom model from its first layer, or by trials."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from gradscope.errors import ConfigError
from gradscope.loading.inference.inferred import Inferred
from gradscope.loading.inference.shapes import likeliest, sources
from gradscope.loading.inference.trials import Layer, Trial, fitting
from gradscope.loading.sources.context import Context

#: Layers without parameters after which a shape is another.
_RESHAPING = (nn.PixelShuffle, nn.PixelUnshuffle, nn.Unflatten, nn.Fold, nn.Unfold)


def infer_layers(context: Context, batch: int | None) -> Inferred:
    """The input of a model that takes none, whose first layer is certain, or that a trial fits.

    Raises:
        ConfigError: any other model, with the input that its first layer suggests.
    """
    model = context.model
    required = required_arguments(model)
    if required == []:
        return Inferred([], "none: forward takes no arguments", context.kind.name)
    rows = batch or 2
    certain = _certain_first(model)
    spec = None if certain is None else likeliest(certain, rows)
    if spec is not None:
        words = f"{spec.get('fill', 'randn')} {spec['shape']}"
        return Inferred(spec, words, f"the first layer, {type(certain).__name__}")
    first = _first_that_says(model)
    trials: Inferred | list[Trial] = []
    if first is not None and _has_forward(model):
        names = required if required is not None and len(required) > 1 else [""]
        trials = fitting(context, names, first, rows)
    if isinstance(trials, Inferred):
        return trials
    raise ConfigError(
        f"the input of {context.kind.name} cannot be inferred",
        place=context.place("input") or context.place("model"),
        help=_remedy(required, first, tried=any(t.copied for t in trials)),
        notes=[_account(trials)] if trials else [],
    )


def required_arguments(model: nn.Module) -> list[str] | None:
    """The names of forward's arguments without a default; None if they are unknown."""
    if not _has_forward(model):
        return None
    parameters = inspect.signature(model.forward).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variadic]
    required = [p.name for p in named if p.default is p.empty]
    return None if not required and len(named) < len(parameters) else required


def _certain_first(model: nn.Module) -> nn.Module | None:
    """The layer that gets the input, of a layer or a Sequential; None where its shape is open."""
    if not _of_torch(model):
        return None
    layers = [model]
    while layers and isinstance(layers[0], nn.Sequential) and _of_torch(layers[0]):
        layers = [*layers[0].children(), *layers[1:]]
    shapeless = (nn.Identity, nn.ReLU, nn.Dropout, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Flatten)
    while layers and isinstance(layers[0], shapeless):
        layers = layers[1:]
    if not layers:
        return None
    rest = [module for layer in layers[1:] for module in layer.modules()]
    sized = any(isinstance(module, (nn.Flatten, nn.Linear)) for module in rest)
    spatial = isinstance(layers[0], (_ConvNd, nn.BatchNorm1d))
    # A convolution takes any size, a linear layer after it only one.
    return layers[0] if _of_torch(layers[0]) and not (spatial and sized) else None


def _of_torch(layer: nn.Module) -> bool:
    """Whether a layer runs PyTorch's own forward, and no subclass's."""
    if isinstance(layer, torch.jit.ScriptModule):
        return False
    return type(layer).forward.__module__.startswith("torch.")


def _has_forward(model: nn.Module) -> bool:
    scripted = isinstance(model, torch.jit.ScriptModule)
    return scripted or type(model).forward is not nn.Module.forward


def _first_that_says(model: nn.Module) -> Layer | None:
    """The first layer that says what it takes, if none before it may have changed the shape."""
    for name, layer in model.named_modules():
        if sources(layer, 2):
            return name, layer
        alone = next(layer.children(), None) is None
        if alone and (isinstance(layer, _RESHAPING) or next(layer.parameters(), None) is not None):
            return None
    return None


def _account(trials: list[Trial]) -> str:
    """What came of the trials: the error of the first, and how many others failed."""
    others = len(trials) - 1
    more = f"; {others} other shape{'s' * (others > 1)} failed too" if others else ""
    return f"{trials[0]}{more}"


def _remedy(required: list[str] | None, first: Layer | None, *, tried: bool) -> str:
    """What to write: what the first layer takes, unless that was tried and did not fit."""
    spec = None if first is None or tried else likeliest(first[1], 2)
    if spec is not None and first is not None:
        words = "{" + ", ".join(f"{key}: {value}" for key, value in spec.items()) + "}"
        given = f"input.shape={spec['shape']}" if len(spec) == 1 else f"input='{words}'"
        return f"try {given}: it fits the first layer `{first[0]}`, {type(first[1]).__name__}"
    if not required or len(required) == 1:
        name = f"`{required[0]}`" if required else "its input"
        return (
            f"write the shape that forward takes as {name}: input.shape=[2, …]; sources nest in "
            "lists and mappings"
        )
    each = ", ".join(f"{name}: {{shape: [2, …]}}" for name in required)
    return f"write what forward takes: `input: {{{each}}}`; sources nest in lists and mappings"
