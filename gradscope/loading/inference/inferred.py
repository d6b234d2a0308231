"""The result of an inference, and the possible sources for a layer, the likeliest first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_INTEGRAL = ("int", "uint", "bool")


@dataclass(frozen=True)
class Inferred:
    """``input`` and ``target`` in the config's grammar; ``origin`` names their origin."""

    input: Any
    summary: str
    origin: str
    target: Any = None

    def with_gradients(self) -> Inferred:
        """Return the same with each floating tensor as a leaf that requires a gradient."""
        return dataclasses.replace(self, input=_requiring(self.input))


def _requiring(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_requiring(item) for item in spec]
    if not isinstance(spec, Mapping):
        return spec
    integral = str(spec.get("dtype", "")).startswith(_INTEGRAL)
    if "image" in spec or ("shape" in spec and not integral):
        return {**spec, "requires_grad": True}
    return {name: _requiring(value) for name, value in spec.items()}


Source = dict[str, Any]
Shapes = Iterator[list[int]]

#: Steps of a sequence.
LENGTH = 16
#: Sides of a picture that a model may be made for, by the number of its dimensions.
_SIDES = {
    1: (32, 128, 64, 16, 100, 256, 512, 1024, 16000),
    2: (32, 28, 64, 224, 96, 128, 256, 299, 48, 84, 16, 8),
    3: (32, 16, 28, 64, 8),
}
#: Shape before a decoder's first upsampling; before it, a generator has one pixel of noise.
_SMALL = 8


def likeliest(layer: nn.Module, rows: int) -> Source | None:
    """Return the likeliest source for a layer; None if the layer does not determine its input."""
    return next(iter(sources(layer, rows)), None)


def sources(layer: nn.Module, rows: int) -> list[Source]:
    """Return the possible sources for a layer, the likeliest first."""
    for kinds, shapes in _SHAPES:
        if isinstance(layer, kinds):
            return [
                _source(layer, shape)
                for shape in shapes(layer, rows)
                # Lazy layers have a size of 0 until they have seen an input.
                if all(isinstance(size, int) and size > 0 for size in shape)
            ]
    return []


def _source(layer: Any, shape: list[int]) -> Source:
    if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return {"shape": shape}
    return {"shape": shape, "dtype": "int64", "fill": f"randint({layer.num_embeddings})"}


def _linear(layer: Any, rows: int) -> Shapes:
    width = layer.in_features
    yield [rows, width]
    for channels in (1, 3):  # pictures that forward flattens
        side = math.isqrt(width // channels)
        if channels * side * side == width:
            yield [rows, channels, side, side]
    yield [rows, LENGTH, width]


def _grid(dimensions: int) -> Callable[[Any, int], Shapes]:
    def shapes(layer: Any, rows: int) -> Shapes:
        for side in _SIDES[dimensions]:
            yield [rows, layer.in_channels, *[side] * dimensions]
        if dimensions == 1:  # sequences that forward transposes
            yield [rows, LENGTH, layer.in_channels]

    return shapes


def _upwards(dimensions: int) -> Callable[[Any, int], Shapes]:
    def shapes(layer: Any, rows: int) -> Shapes:
        noise = set(layer.stride) == {1} and not any(layer.padding)
        for side in (1, _SMALL, 4) if noise else (_SMALL, 1, 4):
            yield [rows, layer.in_channels, *[side] * dimensions]
        yield [rows, layer.in_channels]  # noise that forward gives its dimensions

    return shapes


def _ids(layer: Any, rows: int) -> Shapes:
    yield [rows, LENGTH]
    yield [rows]
    for length in (8, 32, 64, 128, 4, 1):
        yield [rows, length]


def _steps(layer: Any, rows: int) -> Shapes:
    lead = [rows, LENGTH] if layer.batch_first else [LENGTH, rows]
    yield [*lead, layer.input_size]


def _normalized(layer: Any, rows: int) -> Shapes:
    yield [rows, *layer.normalized_shape]
    yield [rows, LENGTH, *layer.normalized_shape]


_SHAPES: list[tuple[Any, Callable[[Any, int], Shapes]]] = [
    (nn.Linear, _linear),
    (nn.Conv1d, _grid(1)),
    (nn.Conv2d, _grid(2)),
    (nn.Conv3d, _grid(3)),
    (nn.ConvTranspose1d, _upwards(1)),
    (nn.ConvTranspose2d, _upwards(2)),
    (nn.ConvTranspose3d, _upwards(3)),
    ((nn.Embedding, nn.EmbeddingBag), _ids),
    (nn.RNNBase, _steps),
    (nn.RNNCellBase, lambda layer, rows: iter([[rows, layer.input_size]])),
    (nn.BatchNorm1d, lambda layer, rows: iter([[rows, layer.num_features]])),
    (
        nn.BatchNorm2d,
        lambda layer, rows: iter([[rows, layer.num_features, side, side] for side in _SIDES[2]]),
    ),
    (nn.LayerNorm, _normalized),
    (
        nn.TransformerEncoderLayer,
        lambda layer, rows: iter([[rows, LENGTH, layer.self_attn.embed_dim]]),
    ),
    (nn.MultiheadAttention, lambda layer, rows: iter([[rows, LENGTH, layer.embed_dim]])),
]
