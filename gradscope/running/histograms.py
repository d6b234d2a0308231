"""Repeats a step for histograms of some layers: outputs, parameters, gradients.

Counts are by sign and power of two: exact, and the same bins for every tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall, ModuleCalls
from gradscope.capture.hooks import hook_tensor
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.full_samples import Histogram
from gradscope.running.step import Step

_CHUNK = 1 << 20  # elements that are held in float64 at a time
#: The lowest and highest exponents of float64, subnormals included.
_LOWEST, _HIGHEST = -1074, 1023


def counted(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the fields of a ``Histogram`` for a tensor; complex numbers by modulus."""
    bins = torch.zeros(2, _HIGHEST - _LOWEST + 1, dtype=torch.int64, device="cpu")
    zeros = nan = inf = numel = 0
    for chunk in _chunks(tensor.detach()):
        numel += chunk.numel()
        zeros += int((chunk == 0).sum())
        nan += int(chunk.isnan().sum())
        inf += int(chunk.isinf().sum())
        chunk = chunk[chunk.isfinite() & (chunk != 0)]
        # frexp's mantissa lies in [0.5, 1): the power of two below |x| is one less.
        exponents = (torch.frexp(chunk).exponent.long() - 1).clamp(_LOWEST, _HIGHEST) - _LOWEST
        for row, sign in enumerate((chunk < 0, chunk > 0)):
            bins[row] += torch.bincount(exponents[sign], minlength=bins.shape[1])
    there = bins.sum(0).nonzero().flatten().tolist()
    first, end = (there[0], there[-1] + 1) if there else (-_LOWEST, -_LOWEST)
    return {
        "numel": numel,
        "first": first + _LOWEST,
        "negative": tuple(bins[0, first:end].tolist()),
        "positive": tuple(bins[1, first:end].tolist()),
        "zeros": zeros,
        "nan": nan,
        "inf": inf,
    }


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements in chunks, in float64 on the CPU."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        parts = list(tensor.unbind())
    else:
        parts = [tensor if tensor.layout == torch.strided else tensor.to_dense()]
    for part in parts:
        for chunk in torch.split(part.reshape(-1), _CHUNK):
            chunk = chunk.cpu()
            yield chunk.abs().double() if chunk.is_complex() else chunk.double()


@dataclass
class _Output:
    """An output of a call: the histogram of its value as returned, and its gradient."""

    activation: Histogram
    gradient: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor | None) -> None:
        """Add a gradient: those of several backwards sum up."""
        if gradient is not None:
            gradient = gradient.detach()
            self.gradient = gradient.clone() if self.gradient is None else self.gradient + gradient


def histograms(step: Step, chosen: dict[nn.Module, Named]) -> tuple[Histogram, ...]:
    """Return histograms of each call's outputs and their gradients, then of the parameters.

    ``step`` comes from a rerun, and runs here.
    """
    outputs: list[_Output] = []

    def after(call: ModuleCall, output: Any) -> None:
        """Make histograms of the call's outputs, and wait for their gradients."""
        for path, tensor in find(output, torch.Tensor):
            if tensor.device.type == "meta":
                continue
            what = counted(tensor)
            one = _Output(Histogram(call.name, "activation", path, call=call.number, **what))
            outputs.append(one)
            if tensor.requires_grad:
                hook_tensor(tensor, one.add)

    # Scripted modules take no hooks; their parameters are still read.
    with ModuleCalls({module: named.name for module, named in chosen.items()}).observed(
        chosen, after=after
    ):
        step.compute_gradients()
    found = []
    for one in outputs:
        found.append(one.activation)
        if one.gradient is not None:
            known = one.activation
            what = counted(one.gradient)
            found.append(Histogram(known.name, "gradient", known.path, call=known.call, **what))
    for module, named in chosen.items():
        for name, parameter in module.named_parameters(recurse=False):
            path = f"{named.name}.{name}".lstrip(".")
            for kind, tensor in (("value", parameter), ("gradient", parameter.grad)):
                if tensor is not None and tensor.device.type != "meta":
                    found.append(Histogram(named.name, kind, path, **counted(tensor)))
    return tuple(found)
