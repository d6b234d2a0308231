"""Figures of the batch of each step that one bad sample moves: its inputs, its samples' losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from gradscope.nesting import find
from gradscope.records.spike import BatchHistory
from gradscope.rules import Window
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.replicas import batch_size

#: Number of steps to compare with: losses of single samples fall while a model learns.
_STEPS = 32
#: An input of fewer values may repeat one by chance.
_VALUES = 4


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Figures of one step; None: not known.

    Attributes:
        input_max: the largest absolute value of the inputs that are real numbers.
        constant: how many samples have inputs that repeat one value.
        length: how many tokens a sample has.
        sample_loss: the largest loss of a sample.
        median_loss: the median of the samples' losses.
    """

    input_max: float | None = None
    constant: int | None = None
    length: int | None = None
    sample_loss: float | None = None
    median_loss: float | None = None


class BatchWindows:
    """The figures of the steps before."""

    def __init__(self) -> None:
        self.inputs = Window()
        self.losses, self.medians = Window(_STEPS), Window(_STEPS)
        self.lengths, self.constants = Window(), Window()

    def add(self, figures: BatchFigures) -> None:
        """Add the figures of a step."""
        self.inputs.add(figures.input_max)
        self.losses.add(figures.sample_loss)
        self.medians.add(figures.median_loss)
        self.lengths.add(figures.length)
        self.constants.add(figures.constant)

    @property
    def history(self) -> BatchHistory:
        """The figures, as a capsule has them."""

        def usual(window: Window) -> float | None:
            return window.usual if window.count else None

        def high(window: Window) -> float | None:
            return max(window.values, default=None)

        constant, length = high(self.constants), high(self.lengths)
        return BatchHistory(
            max(len(self.inputs.values), len(self.constants.values)),
            len(self.losses.values),
            usual(self.losses),
            high(self.losses),
            usual(self.medians),
            high(self.medians),
            usual(self.inputs),
            self.inputs.high if self.inputs.count else None,
            self.inputs.factor,
            None if constant is None else int(constant),
            None if length is None else int(length),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a call.

    Attributes:
        largest: the largest absolute value of its inputs that are real numbers.
        constant: all its inputs repeat one value.
    """

    largest: float | None
    constant: bool


def rows_of(call: RecordedCall, count: int) -> tuple[list[Row], int | None]:
    """The samples of a call, and how many tokens each has; None: its inputs are no tokens."""
    largest: list[float | None] = [None] * count
    constant, known, length = [True] * count, False, None
    for _, tensor in find((call.args, call.kwargs), torch.Tensor):
        if not has_rows(tensor, count):
            continue
        flat = tensor.detach().reshape(count, -1)
        low, high = torch.aminmax(flat, dim=1)
        lows, highs = low.tolist(), high.tolist()
        if tensor.is_floating_point():
            sizes = [max(abs(a), abs(b)) for a, b in zip(lows, highs, strict=True)]
            largest = [max(one, old or 0.0) for one, old in zip(sizes, largest, strict=True)]
        elif tensor.dim() == 2:
            length = max(length or 0, flat.shape[1])
        if flat.shape[1] >= _VALUES:
            known = True
            constant = [old and a == b for old, a, b in zip(constant, lows, highs, strict=True)]
    rows = [Row(one, same and known) for one, same in zip(largest, constant, strict=True)]
    return rows, length


def input_figures(calls: Iterable[RecordedCall]) -> BatchFigures:
    """The figures of the inputs of these calls."""
    largest: list[float] = []
    constant, length, any_rows = 0, None, False
    for call in calls:
        count = batch_size(call.args, call.kwargs)
        if not count:
            continue
        rows, own = rows_of(call, count)
        any_rows = True
        largest += [one.largest for one in rows if one.largest is not None]
        constant += sum(one.constant for one in rows)
        length = own if length is None else max(length, own or 0)
    size = max(largest, default=None)
    if size is not None and not all(map(math.isfinite, largest)):
        size = None  # of a NaN the samples say where it is
    return BatchFigures(size, constant if any_rows else None, length)


def loss_figures(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """The largest and the median loss of the samples of a step; None if one is not finite."""
    if not losses or not all(map(math.isfinite, losses)):
        return None, None
    return max(losses), median(losses)


def copies(call: RecordedCall, count: int) -> list[int | None]:
    """For each sample of a call, the first one with the same inputs; None: it is the first."""
    keys: list[list[bytes]] = [[] for _ in range(count)]
    given = [t for _, t in find((call.args, call.kwargs), torch.Tensor) if has_rows(t, count)]
    if sum(t.numel() for t in given) >= _VALUES * count:  # fewer values are equal by chance
        for tensor in given:
            rows = tensor.detach().cpu().contiguous().reshape(count, -1).view(torch.uint8)
            for key, row in zip(keys, rows.numpy(), strict=True):
                key.append(row.tobytes())
    first: dict[tuple[bytes, ...], int] = {}
    found = []
    for n, key in enumerate(keys):
        before = first.setdefault(tuple(key), n) if key else n
        found.append(None if before == n else before)
    return found


def lengths(call: RecordedCall, count: int) -> list[int | None]:
    """Count the tokens of each sample of a call, without those that fill its end."""
    none: list[int | None] = [None] * count
    for _, tensor in find((call.args, call.kwargs), torch.Tensor):
        if tensor.is_floating_point() or tensor.dim() != 2 or not has_rows(tensor, count):
            continue
        rows = tensor.tolist()
        last = [row[-1] for row in rows]
        fill = max(set(last), key=last.count)
        if last.count(fill) * 2 < count:
            return [len(row) for row in rows]
        return [max((n + 1 for n, one in enumerate(row) if one != fill), default=0) for row in rows]
    return none


def has_rows(tensor: torch.Tensor, count: int) -> bool:
    """Return True if a tensor of real numbers or indices has a row for each sample."""
    plain = tensor.layout == torch.strided and not tensor.is_complex()
    plain = plain and tensor.dtype != torch.bool
    return plain and tensor.dim() > 0 and tensor.shape[0] == count and tensor.numel() > 0
