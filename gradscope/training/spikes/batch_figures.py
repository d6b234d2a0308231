"""Figures of each step's batch that a single bad sample changes: of the inputs, and of the samples'
losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Protocol

import torch

from gradscope.capture.calls import call_tensors
from gradscope.nesting import find
from gradscope.records.spike import BatchHistory
from gradscope.rules import Window, is_sure
from gradscope.training.replicas import batch_size

#: Number of steps to compare with: losses of single samples fall while a model learns.
_STEPS = 32
#: An input of fewer values may repeat one by chance.
_VALUES = 4
#: PyTorch finds no extremes of these.
_WITHOUT_ORDER = frozenset({torch.bool, torch.uint16, torch.uint32, torch.uint64})


class Given(Protocol):
    """The inputs of a call."""

    @property
    def args(self) -> tuple[Any, ...]: ...

    @property
    def kwargs(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Figures of one step; None: not known.

    Attributes:
        input_max: the largest absolute value of the inputs that are real numbers.
        constant: the number of samples whose inputs repeat one value.
        constants: the number of samples that repeat one value in an input, by the input's path.
        length: the largest number of tokens of a sample.
        copies: the largest number of samples with equal inputs.
        count: the number of samples of the call.
        twins: the number of samples with equal inputs in two calls, such as an anchor and its
            negative, or in two rows of one term of the loss.
        sample_loss: the largest loss of a sample.
        median_loss: the median of the samples' losses.
        sure: a classifier is sure of another class than the label of the sample with that loss.
        texts: the losses are means over tokens.
    """

    input_max: float | None = None
    constant: int | None = None
    length: int | None = None
    copies: int | None = None
    count: int = 0
    twins: int | None = None
    sample_loss: float | None = None
    median_loss: float | None = None
    sure: bool = False
    texts: bool = False
    constants: Mapping[str, int] = field(default_factory=dict)


class BatchWindows:
    """The figures of the steps before."""

    def __init__(self) -> None:
        self.inputs = Window()
        self.losses, self.medians = Window(_STEPS), Window(_STEPS)
        self.lengths, self.constants = Window(), Window()
        self.copies, self.twins = Window(), Window()
        self.each: dict[str, Window] = {}  # as ``constants``, of each input

    def add(self, figures: BatchFigures) -> None:
        """Add the figures of a step."""
        self.inputs.add(figures.input_max)
        self.losses.add(figures.sample_loss)
        self.medians.add(figures.median_loss)
        self.lengths.add(figures.length)
        self.constants.add(figures.constant)
        self.copies.add(figures.copies)
        self.twins.add(figures.twins)
        for path, count in figures.constants.items():
            self.each.setdefault(path, Window()).add(count)

    @property
    def history(self) -> BatchHistory:
        """The figures, as a capsule has them."""

        def usual(window: Window) -> float | None:
            return window.usual if window.count else None

        def high(window: Window) -> float | None:
            return max(window.values, default=None)

        def highest(window: Window) -> int | None:
            return None if not window.values else int(max(window.values))

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
            highest(self.constants),
            highest(self.lengths),
            highest(self.copies),
            highest(self.twins),
            self.losses.factor,
            sum(count > 0 for count in self.constants.values),
            tuple(
                path
                for path, window in self.each.items()
                if window.count >= _STEPS and not any(window.values)
            ),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a call.

    Attributes:
        largest: the largest absolute value of its inputs that are real numbers.
        constant: all its inputs repeat one value.
        constant_in: the paths of the inputs that repeat one value.
        trait: equal for samples with equal inputs, and seldom for others; () without inputs.
    """

    largest: float | None
    constant: bool
    trait: tuple[float, ...] = ()
    constant_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """The samples of a call, in columns: they are read in every step.

    Attributes:
        largest: as in ``Row``.
        traits: as in ``Row``.
        repeated: for each input with enough values to tell, by its path: whether each sample
            repeats one value.
        length: the number of tokens of each sample; None if the inputs are no tokens.
    """

    largest: list[float | None]
    traits: list[tuple[float, ...]]
    repeated: dict[str, list[bool]]
    length: int | None

    @property
    def constant(self) -> list[bool]:
        """For each sample: all its inputs repeat one value."""
        columns = self.repeated.values()
        return list(map(all, zip(*columns, strict=True))) if columns else [False] * len(self.traits)

    @property
    def each(self) -> list[Row]:
        """The samples."""
        rows = enumerate(zip(self.largest, self.constant, self.traits, strict=True))
        return [
            Row(*row, tuple(path for path, column in self.repeated.items() if column[n]))
            for n, row in rows
        ]


def rows_of(call: Given, count: int) -> Rows:
    """Return the samples of a call."""
    largest: list[float | None] = [None] * count
    traits: list[tuple[float, ...]] = [()] * count
    repeated: dict[str, list[bool]] = {}
    length: int | None = None
    for path, tensor in call_tensors(call.args, call.kwargs):
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
            each = zip(lows, highs, _sums(flat), strict=True)
            traits = [(*old, *one) for old, one in zip(traits, each, strict=True)]
            repeated[path] = (low == high).tolist()
    return Rows(largest, traits, repeated, length)


def _sums(rows: torch.Tensor) -> list[float]:
    """Return the sum of each row. Tokens are weighted by their position, because short texts often
    have equal sums."""
    if not rows.is_floating_point():
        rows = rows.long() * torch.arange(1, rows.shape[1] + 1, device=rows.device)
    found: list[float] = rows.sum(1).tolist()
    return found


def input_figures(calls: Sequence[Given], rows_each: Sequence[int] = ()) -> BatchFigures:
    """Return the figures of the calls' inputs.

    Args:
        calls: the calls of a step.
        rows_each: for each call, the number of rows that a term of the loss compares; () for 1.
    """
    largest: list[float] = []
    constant, length, copied, of, twins, any_rows = 0, None, 0, 0, 0, False
    constants: dict[str, int] = {}
    earlier: list[list[tuple[float, ...]]] = []
    for call, each in zip(calls, rows_each or [1] * len(calls), strict=True):
        count = batch_size(call.args, call.kwargs)
        if not count:
            continue
        found, any_rows = rows_of(call, count), True
        largest += [one for one in found.largest if one is not None]
        constant += sum(found.constant)
        traits = found.traits
        earlier = [old for old in earlier if len(old) == count]
        if earlier:
            known = enumerate(traits)
            twins += sum(any(one and one == old[n] for old in earlier) for n, one in known)
        twins += _in_one_term(traits, each)
        earlier.append(traits)
        same = Counter(filter(None, traits))
        copied, of = max([(copied, of), *((many, count) for many in same.values())])
        length = found.length if length is None else max(length, found.length or 0)
        for path, column in found.repeated.items():
            constants[path] = constants.get(path, 0) + sum(column)
    size = max(largest, default=None)
    if size is not None and not all(map(math.isfinite, largest)):
        size = None  # of a NaN the samples say where it is
    if not any_rows:
        return BatchFigures(size)
    figures = BatchFigures(size, constant, length, copied or None, of, twins)
    return replace(figures, constants=constants)


def _in_one_term(traits: Sequence[tuple[float, ...]], each: int) -> int:
    """Return the number of rows with equal inputs to an earlier row that may be in the same term of
    the loss: each term has ``each`` rows, side by side or one of each batch.
    """
    if each == 1:
        return 0
    terms, found = len(traits) // each, 0
    places: dict[tuple[float, ...], list[int]] = {}
    for n, trait in enumerate(traits):
        known = places.setdefault(trait, []) if trait else []
        found += any(n % terms == m % terms or n // each == m // each for m in known)
        known.append(n)
    return found


def loss_figures(
    losses: Sequence[float], predicted: Sequence[float | None]
) -> tuple[float | None, float | None, bool]:
    """Return the largest and the median loss of a step's samples, None if one is not finite; and
    True if a classifier is sure of another class than the label of the sample with the largest.

    ``predicted`` has the loss of each sample with the class that the model predicts, if known.
    """
    if not losses or not all(map(math.isfinite, losses)):
        return None, None, False
    worst = losses.index(max(losses))
    others = [*predicted[:worst], *predicted[worst + 1 :]]
    return losses[worst], median(losses), is_sure(losses[worst], predicted[worst], others)


def copies(call: Given, count: int) -> list[int | None]:
    """Return for each sample of a call the first sample with equal inputs; None if it is the
    first."""
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


def twins(call: Given, count: int, earlier: Sequence[Given]) -> list[int | None]:
    """Return for each sample of a call the first earlier call with equal inputs in the same row."""
    found: list[int | None] = [None] * count
    own = [t.detach() for _, t in find((call.args, call.kwargs), torch.Tensor)]
    for place, other in enumerate(earlier):
        its = [t.detach() for _, t in find((other.args, other.kwargs), torch.Tensor)]
        pairs = [(a, b) for a, b in zip(own, its, strict=False) if has_rows(a, count)]
        pairs = [(a, b) for a, b in pairs if a.numel() >= _VALUES * count]
        if len(own) != len(its) or not pairs or any(a.shape != b.shape for a, b in pairs):
            continue
        same = torch.stack([(a == b).reshape(count, -1).all(1) for a, b in pairs]).all(0)
        each = zip(found, same.tolist(), strict=True)
        found = [place if old is None and equal else old for old, equal in each]
    return found


def lengths(call: Given, count: int) -> list[int | None]:
    """Count the tokens of each sample of a call, without the padding at its end."""
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
    plain = plain and tensor.dtype not in _WITHOUT_ORDER and not tensor.is_nested
    # PyTorch finds no extremes of floats of 8 bits.
    plain = plain and not (tensor.is_floating_point() and tensor.element_size() == 1)
    return plain and tensor.dim() > 0 and tensor.shape[0] == count and tensor.numel() > 0
