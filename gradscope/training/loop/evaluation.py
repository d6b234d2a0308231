"""Observes the evaluation of models: their modes, their inputs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from gradscope.capture.shards import is_spread
from gradscope.nesting import find
from gradscope.records.loop_figures import LoopInputs
from gradscope.training.loop.script_lines import script_place

_Layers = list[weakref.ref[nn.Module]]


class Modes:
    """Facts on calls with gradients ("call") and without ("evaluation"):

    - "train", "eval": the mode of the model itself
    - "norm-off", "dropout-off" (of a call): no layer of this kind is in train mode, though the
      model has such layers and no frozen parameter
    - "norm-on", "dropout-on" (of an evaluation): layers of this kind are in train mode
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


#: Fewer numbers say little.
_FEWEST = 64


class _Scales:
    """Facts on one model."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()  # of a sample
        self.batches, self.sum, self.squares = 0, 0.0, 0.0
        self.calls = 0
        # By the number of samples: a script may evaluate on the training data beside others.
        self.evaluated: dict[int, _Evaluated] = {}

    @property
    def trained(self) -> tuple[float, float]:
        """Mean and standard deviation of all training inputs that were read."""
        mean = self.sum / self.batches
        return mean, math.sqrt(max(self.squares / self.batches - mean * mean, 0.0))


#: Evaluations on fewer samples are taken together: they may be dummy inputs, or last batches.
_SAMPLES = 16


class _Evaluated:
    """Facts on evaluations on so many samples."""

    def __init__(self) -> None:
        self.readings = 0
        self.shift = self.ratio = math.inf
        self.example = 0.0, 0.0
        self.location: str | None = None


class EvaluationInputs:
    """Reads the first floating tensor of each model's calls: in sampled steps, and in evaluations
    1, 2, 4, 8, …"""

    def __init__(self) -> None:
        self._of: dict[int, _Scales] = {}

    def called(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a training call of a model, in a sampled step."""
        given = _numbers(args, kwargs)
        if given is None:
            return
        known = self._of.setdefault(model, _Scales())
        known.shape = tuple(given.shape[1:])
        mean, deviation = _moments(given)
        known.batches += 1
        known.sum += mean
        known.squares += deviation * deviation + mean * mean

    def evaluated(self, model: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call of a model without gradients."""
        known = self._of.get(model)
        if known is None:
            return
        known.calls += 1
        if known.calls & (known.calls - 1):  # no power of two
            return
        given = _numbers(args, kwargs)
        if given is None or tuple(given.shape[1:]) != known.shape:
            return
        mean, deviation = _moments(given)
        before, usual = known.trained
        if not deviation or not usual or not math.isfinite(mean + deviation + usual):
            return
        samples = len(given) if len(given) >= _SAMPLES else 0
        mine = known.evaluated.setdefault(samples, _Evaluated())
        mine.readings += 1
        mine.shift = min(mine.shift, abs(mean - before) / usual)
        mine.ratio = min(mine.ratio, max(deviation / usual, usual / deviation))
        mine.example = mean, deviation
        mine.location = mine.location or script_place()

    def records(self) -> Iterator[LoopInputs]:
        """Yield the record of each model that is evaluated: of the evaluations that differ most."""
        for model, one in self._of.items():
            worst = max(one.evaluated.values(), key=lambda e: (e.shift, e.ratio), default=None)
            if worst is not None:
                yield LoopInputs(
                    model, worst.readings, *one.trained, worst.shift, worst.ratio, worst.example,
                    worst.location,
                )  # fmt: skip


def _numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the first tensor of a call, if it has enough numbers and no operation made it."""
    given = next((one for _, one in find((args, kwargs), torch.Tensor)), None)
    if given is None or given.dim() < 2 or given.numel() < _FEWEST or is_spread(given):
        return None
    plain = given.layout == torch.strided and not given.is_meta and not given.is_nested
    return given if plain and given.is_floating_point() and given.grad_fn is None else None


def _moments(values: torch.Tensor) -> tuple[float, float]:
    values = values.detach().double()
    return float(values.mean()), float(values.std())
