"""The cases of the truth check: a model, its inputs and what is special about running it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truth import hard_nets, nets, odd_nets


@dataclass(frozen=True)
class Case:
    """``inputs`` is a tensor, a tuple of positionals or a dict of keyword arguments."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    autocast: torch.dtype | None = None
    double: bool = True
    training: bool = True

    def build(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
        """The model and its inputs, the same ones each time."""
        torch.manual_seed(1)
        model = self.model()
        if not self.training:
            model.eval()
        inputs = self.inputs()
        if dtype == torch.float32:  # which .to() would also do to complex parameters
            return model, inputs
        return model.to(dtype), _cast(inputs, dtype)

    @staticmethod
    def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``inputs`` as positional and keyword arguments."""
        if isinstance(inputs, dict):
            return (), inputs
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def weighted_sum(output: Any) -> Tensor:
    """A loss that pulls differently at every element of every floating tensor in ``output``."""
    total = torch.zeros((), dtype=torch.float32)
    for tensor in _tensors(output):
        if tensor.is_floating_point():
            tensor = tensor if tensor.dtype == torch.float64 else tensor.float()
            weights = torch.arange(tensor.numel(), dtype=tensor.dtype).add(0.5).cos()
            total = total + (tensor * weights.view(tensor.shape)).sum()
    return total


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return type(value)(_cast(item, dtype) for item in value)


def _zoo(name: str, **options: Any) -> nn.Module:
    import torchvision.models

    return getattr(torchvision.models, name)(weights=None, **options)


def swin() -> nn.Module:
    """As `swin_t`, with two stages and few channels: windows are shifted, patches merged."""
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 12, depths=[2, 2], num_heads=[1, 2], window_size=[7, 7])


def convnext() -> nn.Module:
    """As `convnext_tiny`, with two stages and few channels."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(12, 24, 2), CNBlockConfig(24, None, 2)])


def _normal(*shape: int) -> Callable[[], Tensor]:
    return functools.partial(torch.randn, *shape)


def _ids(top: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, top, shape)


def _sized(name: str, *shape: int, training: bool = True, **options: Any) -> Case:
    return Case(name, functools.partial(_zoo, name, **options), _normal(*shape), training=training)


def _narrow(name: str, net: type[nn.Module], dtype: torch.dtype) -> Case:
    shape = (2, 3, 8, 8)
    return Case(name, lambda: net().to(dtype), lambda: torch.randn(shape).to(dtype), double=False)


ZOO = (
    _sized("resnet18", 2, 3, 64, 64),
    _sized("densenet121", 2, 3, 64, 64),
    _sized("googlenet", 2, 3, 64, 64, init_weights=False),
    Case("swin", swin, _normal(1, 3, 64, 64)),
    Case("convnext", convnext, _normal(2, 3, 32, 32)),
)

SMALL = (
    Case("lstm", nets.LstmClassifier, _ids(30, 3, 7)),
    Case("repeated-cell", nets.RepeatedCell, _normal(2, 5, 6)),
    Case("tied-transformer", nets.TiedTransformer, _ids(20, 2, 9)),
    Case("checkpoint", functools.partial(nets.Checkpointed, False), _normal(5, 6)),
    Case("checkpoint-reentrant", functools.partial(nets.Checkpointed, True), _normal(5, 6)),
    Case("in-place", nets.InPlace, _normal(2, 3, 8, 8)),
    Case("in-place-skip", nets.InPlaceSkip, _normal(3, 6)),
    Case("in-place-view", nets.InPlaceView, _normal(2, 3, 8, 8)),
    Case("in-place-half", nets.InPlaceHalf, _normal(3, 6)),
    Case("in-place-argument", nets.InPlaceArgument, _normal(3, 4)),
    Case("containers", nets.Containers, _normal(3, 4)),
    Case(
        "keywords",
        nets.Keywords,
        lambda: {"first": torch.randn(3, 4, requires_grad=True), "second": torch.randn(3, 4)},
    ),
    Case("shared-input", nets.SharedInput, _normal(2, 5, 8)),
    Case("frozen-parts", odd_nets.FrozenParts, _normal(3, 4)),
    Case("integer-outputs", odd_nets.IntegerOutputs, _normal(5, 4)),
    Case("empty-and-scalar", odd_nets.EmptyAndScalar, _normal(5, 4)),
    Case("sparse-embedding", odd_nets.SparseEmbedding, _ids(40, 4, 6)),
    # Module.to(float64) would make complex parameters real, so this runs in float32 only.
    Case("complex", odd_nets.ComplexNet, _normal(3, 8), double=False),
    Case("pass-through", odd_nets.PassThrough, _normal(3, 4)),
    Case("unused", odd_nets.Unused, _normal(3, 4)),
    Case("called-twice", odd_nets.CalledTwice, _normal(3, 4)),
    Case("outside-use", odd_nets.OutsideUse, _normal(3, 4)),
    Case("non-finite", odd_nets.NonFinite, _normal(6, 4)),
    Case("extremes", odd_nets.Extremes, _normal(6, 4)),
    Case("offset", odd_nets.Offset, _normal(6, 4)),
    Case("plain", odd_nets.Plain, _normal(2, 3, 8, 8)),
    Case(
        "autocast",
        odd_nets.Plain,
        _normal(2, 3, 8, 8),
        autocast=torch.bfloat16,
        double=False,
    ),
    Case(
        "autocast-transformer",
        nets.TiedTransformer,
        _ids(20, 2, 9),
        autocast=torch.bfloat16,
        double=False,
    ),
)

HARD = (
    Case("partly-through", hard_nets.PartlyThrough, _normal(3, 4)),
    Case("custom-function", hard_nets.CustomFunction, _normal(3, 4)),
    Case(
        "nested-checkpoints", functools.partial(hard_nets.NestedCheckpoints, False), _normal(3, 4)
    ),
    Case("nested-reentrant", functools.partial(hard_nets.NestedCheckpoints, True), _normal(3, 4)),
    Case("packed", hard_nets.Packed, _normal(3, 5, 4)),
    Case("parameter-input", hard_nets.ParameterInput, _normal(3, 4)),
    Case("many-outputs", hard_nets.ManyOutputs, _normal(3, 4)),
    Case("encoder", hard_nets.Encoder, _normal(2, 5, 8)),
    Case("encoder-eval", hard_nets.Encoder, _normal(2, 5, 8), training=False),
    Case("dense", hard_nets.Dense, _normal(3, 4)),
    Case("view-chain", hard_nets.ViewChain, _normal(3, 4)),
    Case("leaf", hard_nets.Leaf, lambda: torch.randn(3, 4, requires_grad=True)),
    _narrow("bfloat16", nets.InPlace, torch.bfloat16),
    _narrow("float16", odd_nets.Plain, torch.float16),
)

ALL = (*ZOO, *SMALL, *HARD)
