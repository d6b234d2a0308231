"""Reads a layer's output for a batch of pictures, inside a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.capture.activation_maps import PASSING, POOLING, as_map, patch_grid
from gradscope.capture.hooks import hookable_modules, hooked, select_layer, select_layers
from gradscope.capture.names import named_modules
from gradscope.errors import OptionError
from gradscope.nesting import find


@dataclass(frozen=True, slots=True)
class Layer:
    """An observed module: its output is read, or with ``reads`` its input."""

    name: str
    module: nn.Module
    reads: bool = False

    @property
    def title(self) -> str:
        """The layer's name for messages."""
        name = self.name or "the model"
        return f"input of {name}" if self.reads else name


Read = Callable[[Layer, Tensor], None]


@contextmanager
def hooked_layers(layers: Sequence[Layer], read: Read) -> Iterator[None]:
    """Call ``read`` with the first floating tensor of each call.

    ``read`` must not keep the tensor, because a later in-place operation may change it.
    """
    by_module: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        by_module.setdefault(layer.module, []).append(layer)

    def look(module: nn.Module, reads: bool, values: Any) -> None:
        for layer in by_module[module]:
            if layer.reads is reads:
                tensor = next((t for _, t in find(values, Tensor) if t.is_floating_point()), None)
                if tensor is not None:
                    read(layer, tensor)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        look(module, True, (args, kwargs))

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        look(module, False, output)

    with hooked(list(by_module), before, after):
        yield


def run(model: nn.Module, inputs: Tensor, layers: Sequence[Layer], read: Read) -> None:
    """Run one forward of inputs [N, C, H, W] without a graph; hooks call ``read``."""
    with torch.no_grad(), hooked_layers(layers, read):
        # A copy: a model may normalise its input in place.
        model(inputs.clone())


def one_layer(model: nn.Module, pattern: str) -> Layer:
    """Return the layer that a pattern names.

    Raises:
        LayerError: no layer has that name; the message names the closest.
        OptionError: several layers match.
    """
    return Layer(*select_layer(model, pattern))


def layers_matching(model: nn.Module, patterns: Sequence[str]) -> list[Layer]:
    """Return the layers that patterns select.

    Raises:
        LayerError: a pattern matches nothing; the message names the closest.
    """
    return [Layer(named.name, module) for module, named in select_layers(model, patterns).items()]


def last_map(model: nn.Module, inputs: Tensor) -> Layer:
    """Return the last layer with a spatial map for inputs [N, C, H, W], without pooled ones.

    Raises:
        OptionError: there is none.
    """
    found: list[Layer] = []
    patches, size = patch_grid(model, inputs), (inputs.shape[2], inputs.shape[3])

    def read(layer: Layer, values: Tensor) -> None:
        kind = type(layer.module).__name__
        if any(word in kind for word in (*PASSING, *POOLING)) or not layer.name:
            return
        made = as_map(values, size, module=layer.module, patches=patches, strict=True)
        if made is not None and not (values.dim() == 3 and patches is None):
            found.append(layer)

    run(model, inputs, _all(model), read)
    if not found:
        raise OptionError(
            "no layer of this model gives a spatial map",
            help="name a layer with `-l`: its units are listed, without maps",
        )
    return found[-1]


def last_features(model: nn.Module, inputs: Tensor) -> Layer:
    """Return the layer whose output the last linear layer reads: the features.

    Raises:
        OptionError: no linear layer runs.
    """
    found: list[Layer] = []
    layers = [
        Layer(one.name, one.module, reads=True)
        for one in _all(model)
        if isinstance(one.module, nn.Linear)
    ]
    run(model, inputs, layers, lambda layer, _: found.append(layer))
    if not found:
        raise OptionError(
            "no linear layer runs in this model, so there are no features to read",
            help="name the layer with `-l`; `gradscope layers MODEL` lists them",
        )
    return found[-1]


def _all(model: nn.Module) -> list[Layer]:
    names = named_modules(model)
    return [Layer(names[module].name, module) for module in hookable_modules(model)]


def batch_first(values: Tensor, layer: Layer, rows: int) -> Tensor:
    """Return the values with the pictures along the first dimension.

    Raises:
        OptionError: they have not one row per picture.
    """
    if values.dim() == 3 and getattr(layer.module, "batch_first", True) is False:
        values = values.transpose(0, 1)
    if values.dim() < 2 or len(values) != rows:
        raise OptionError(
            f"layer `{layer.title}` gives {list(values.shape)} for {rows} pictures: "
            "not one row for each",
            help="name a layer whose first dimension is the batch; "
            "`gradscope layers MODEL` lists them",
        )
    return values


def require_called(called: bool, layer: Layer) -> None:
    """Refuse a layer without features.

    Raises:
        OptionError: it returned no floating tensor.
    """
    if not called:
        raise OptionError(
            f"layer `{layer.title}` gave no tensor of features when the model ran",
            help="name a layer that runs; `gradscope inspect MODEL` shows each one's output",
        )
