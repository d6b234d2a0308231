"""What a user's own model says about its input: its first layer, where it is plainly first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from gradscope.loading.inference.inferred import Inferred
from gradscope.loading.sources.context import Context

_LENGTH = 16
_SIDE = 32
#: What a decoder's first upsampling begins with; before it a generator has one pixel of noise.
_SMALL = 8


def infer_layers(context: Context, batch: int | None) -> Inferred:
    """The input of a model that takes none, or whose first layer is certain and fixes the shape.

    Raises:
        ConfigError: any other model, with the input that its first layer suggests.
    """
    model, name = context.model, context.kind.name
    required = _required(model)
    if required == []:
        return Inferred([], "none: forward takes no arguments", name)
    rows = batch or 2
    first = _certain_first(model)
    spec = None if first is None else describe(first, rows)
    if spec is not None and first is not None:
        words = f"{spec.get('fill', 'randn')} {spec['shape']}"
        return Inferred(spec, words, f"the first layer, {type(first).__name__}")
    raise context.error("input", f"what {name} takes cannot be inferred", _suggest(model, required))


def _required(model: nn.Module) -> list[str] | None:
    """The names of forward's arguments without a default; None where they cannot be told."""
    if type(model).forward is nn.Module.forward:
        return None
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for p in parameters):
        return None
    return [p.name for p in parameters if p.default is kinds.empty]


def _certain_first(model: nn.Module) -> nn.Module | None:
    """The layer that gets the input, of a layer or a Sequential; None where its shape is open."""
    layers = [model]
    while layers and isinstance(layers[0], nn.Sequential):
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
    return None if spatial and sized else layers[0]


def describe(layer: nn.Module, rows: int) -> dict[str, Any] | None:
    """The source that fits a layer; None for a layer that says nothing about its input."""
    for kinds, source in _SOURCES:
        if isinstance(layer, kinds):
            spec = source(layer, rows)
            sizes = spec["shape"]
            # Lazy layers have a size of 0 until they have seen an input.
            return spec if all(isinstance(size, int) and size > 0 for size in sizes) else None
    return None


def _grid(dimensions: int) -> Callable[[Any, int], dict[str, Any]]:
    def source(layer: Any, rows: int) -> dict[str, Any]:
        return {"shape": [rows, layer.in_channels, *[_SIDE] * dimensions]}

    return source


def _upwards(dimensions: int) -> Callable[[Any, int], dict[str, Any]]:
    def source(layer: Any, rows: int) -> dict[str, Any]:
        side = 1 if set(layer.stride) == {1} and not any(layer.padding) else _SMALL
        return {"shape": [rows, layer.in_channels, *[side] * dimensions]}

    return source


def _ids(layer: Any, rows: int) -> dict[str, Any]:
    return {
        "shape": [rows, _LENGTH],
        "dtype": "int64",
        "fill": f"randint({layer.num_embeddings})",
    }


def _steps(layer: Any, rows: int) -> dict[str, Any]:
    lead = [rows, _LENGTH] if layer.batch_first else [_LENGTH, rows]
    return {"shape": [*lead, layer.input_size]}


#: Layers without parameters after which a shape is another.
_RESHAPING = (nn.PixelShuffle, nn.PixelUnshuffle, nn.Unflatten, nn.Fold, nn.Unfold)

_SOURCES: list[tuple[Any, Callable[[Any, int], dict[str, Any]]]] = [
    (nn.Linear, lambda layer, rows: {"shape": [rows, layer.in_features]}),
    (nn.Conv1d, _grid(1)),
    (nn.Conv2d, _grid(2)),
    (nn.Conv3d, _grid(3)),
    (nn.ConvTranspose1d, _upwards(1)),
    (nn.ConvTranspose2d, _upwards(2)),
    (nn.ConvTranspose3d, _upwards(3)),
    ((nn.Embedding, nn.EmbeddingBag), _ids),
    (nn.RNNBase, _steps),
    (nn.RNNCellBase, lambda layer, rows: {"shape": [rows, layer.input_size]}),
    (nn.BatchNorm1d, lambda layer, rows: {"shape": [rows, layer.num_features]}),
    (nn.BatchNorm2d, lambda layer, rows: {"shape": [rows, layer.num_features, _SIDE, _SIDE]}),
    (nn.LayerNorm, lambda layer, rows: {"shape": [rows, *layer.normalized_shape]}),
    (
        nn.TransformerEncoderLayer,
        lambda layer, rows: {"shape": [rows, _LENGTH, layer.self_attn.embed_dim]},
    ),
    (nn.MultiheadAttention, lambda layer, rows: {"shape": [rows, _LENGTH, layer.embed_dim]}),
]


def _first_that_says(model: nn.Module) -> tuple[str, nn.Module, dict[str, Any]] | None:
    """The first layer that says what it takes, if none before it may have changed the shape."""
    for name, layer in model.named_modules():
        spec = describe(layer, 2)
        if spec is not None:
            return name, layer, spec
        alone = next(layer.children(), None) is None
        if alone and (isinstance(layer, _RESHAPING) or next(layer.parameters(), None) is not None):
            return None
    return None


def _suggest(model: nn.Module, required: list[str] | None) -> str:
    """An ``input`` to try, from the first layer that says what it takes."""
    name, layer, spec = _first_that_says(model) or ("", None, {"shape": [2, 8]})
    words = "{" + ", ".join(f"{key}: {value}" for key, value in spec.items()) + "}"
    fits = f": it fits the first layer{f' `{name}`' if name else ''}, {type(layer).__name__}"
    why = fits if layer is not None else ", with the shape that its forward takes"
    if required is not None and len(required) > 1:
        rest = "".join(f", {word}: {{shape: […]}}" for word in required[1:])
        return f"try `input: {{{required[0]}: {words}{rest}}}`{why}"
    return (
        f"try input.shape={spec['shape']}{why}" if len(spec) == 1 else f"try input='{words}'{why}"
    )
