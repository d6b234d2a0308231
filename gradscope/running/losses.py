"""The loss as a number: of one step, of its micro-batches, and of what it is computed of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.capture.stats import Measured, measure, resolve
from gradscope.records.run import LossPart
from gradscope.records.tensors import TensorStats

#: The loss of a micro-batch, under "", and what it is computed of where that is several.
Losses = dict[str, Measured]
#: A number, or which kind of number it is not; neither of what has several.
Value = tuple[float | None, str | None]


def read_losses(batches: Sequence[Losses]) -> tuple[Value, tuple[LossPart, ...]]:
    """The loss over all micro-batches, read at once from its device, and its parts."""
    read = resolve(one for losses in batches for one in losses.values())
    found = {name: _total([_value(read[id(one[name])]) for one in batches]) for name in batches[0]}
    full = found.pop("")
    # The loss itself was divided by the number of micro-batches.
    parts = (
        LossPart(name, None if value is None else value / len(batches), nonfinite)
        for name, (value, nonfinite) in found.items()
    )
    return full, tuple(parts)


def loss_value(loss: torch.Tensor) -> Value:
    """The loss's one number, or which kind of number it is not."""
    measured = measured_loss(loss)
    return _value(resolve([measured])[id(measured)])


def measured_loss(loss: torch.Tensor) -> Measured:
    """The loss for ``resolve`` to read with the rest."""
    plain = type(loss) is torch.Tensor and loss.layout == torch.strided
    if plain or loss.numel() != 1 or loss.is_complex() or loss.device.type == "meta":
        return measure(loss)
    # A subclass may hide what it wraps from all but `item`.
    return measure(torch.tensor(float(loss.detach().item()), dtype=torch.float64))


def _value(loss: TensorStats) -> Value:
    if loss.numel != 1 or not loss.values:
        return None, None
    (value,) = loss.values
    if isinstance(value, tuple):  # complex
        return None, None
    return (None, value) if isinstance(value, str) else (float(value), None)


def _total(values: Sequence[Value]) -> Value:
    """The sum over micro-batches, or which kind of number one of them is not."""
    nonfinite = next((kind for _, kind in values if kind is not None), None)
    numbers = [value for value, _ in values if value is not None]
    return (sum(numbers) if len(numbers) == len(values) else None), nonfinite
