"""Checks the modes of models at their calls, for dropout and norm layers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from gradscope.nesting import find

_Layers = list[weakref.ref[nn.Module]]


class Modes:
    """Facts on calls with gradients ("call") and without ("evaluation"):

    - "train", "eval": the mode of the model itself
    - "norm-off", "dropout-off" (of a call): no such layer of the model is in train mode, though the
      model has some, and no parameter of it is frozen
    - "norm-on", "dropout-on" (of an evaluation): such layers are in train mode
    - "repeated" (of an evaluation): its input is the same tensor as in the one before
    """

    def __init__(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Module, tuple[_Layers, _Layers]] = (
            weakref.WeakKeyDictionary()
        )
        self._given: dict[int, tuple[int, int]] = {}

    def call(self, module: nn.Module) -> frozenset[str]:
        """Return the facts of a call with gradients."""
        if module.training:
            return _TRAIN
        norms, dropouts = self._of(module)
        facts = {"eval"}
        if not all(parameter.requires_grad for parameter in module.parameters()):
            return frozenset(facts)
        if norms and not any(map(_trains, norms)):
            facts.add("norm-off")
        if dropouts and not any(map(_trains, dropouts)):
            facts.add("dropout-off")
        return frozenset(facts)

    def evaluation(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the facts of a call without gradients."""
        if not module.training:
            return _EVAL
        norms, dropouts = self._of(module)
        facts = {"train"}
        if any(map(_trains, norms)):
            facts.add("norm-on")
        if any(map(_trains, dropouts)):
            facts.add("dropout-on")
        tensor = next((one for _, one in find((args, kwargs), torch.Tensor)), None)
        if tensor is not None and not tensor.is_inference():
            given = tensor.data_ptr() if tensor.layout is torch.strided else 0, tensor._version
            if self._given.get(id(module)) == given:
                facts.add("repeated")
            self._given[id(module)] = given
        return frozenset(facts)

    def _of(self, module: nn.Module) -> tuple[_Layers, _Layers]:
        """Return the layers that keep running statistics, and the layers that drop activations."""
        known = self._layers.get(module)
        if known is None:
            inside = list(module.modules())
            known = self._layers[module] = (
                [weakref.ref(one) for one in inside if _keeps_statistics(one)],
                [weakref.ref(one) for one in inside if _drops(one)],
            )
        return known


_TRAIN, _EVAL = frozenset({"train"}), frozenset({"eval"})


def _trains(layer: weakref.ref[nn.Module]) -> bool:
    module = layer()
    return module is not None and module.training


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.track_running_stats


def _drops(module: nn.Module) -> bool:
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, _DropoutNd) and module.p > 0
