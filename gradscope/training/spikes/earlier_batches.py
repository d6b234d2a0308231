"""The batches of the steps before a spike, for ``run --keep-batches``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradscope.capture.measurements import version
from gradscope.nesting import find, replaced
from gradscope.records.spike import EarlierBatch, SpikeSample
from gradscope.records.tensors import finite_or_none
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.replicas import batch_size
from gradscope.training.spikes.batch_figures import copies, has_rows, lengths, rows_of
from gradscope.training.spikes.sample_losses import RowLosses
from gradscope.training.spikes.samples import input_sizes

_WRITTEN = "the script has written over this batch since"
_LARGE = "the script writes over its batches, and copies are larger than `--capsule-size`"


@dataclass(frozen=True, slots=True)
class _HeldCall:
    """The inputs of a call, without its graph, and the loss and indices of its samples."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: RowLosses | None
    indices: Sequence[int] | None

    def samples(self, number: int) -> Iterator[SpikeSample]:
        """Yield the samples with everything that is known without a replay; ``number`` is that of
        the call."""
        count = batch_size(self.args, self.kwargs) or 0
        if not count:
            return
        losses = None if self.rows is None else self.rows.of_samples(count)
        sizes, rows = input_sizes((self.args, self.kwargs), count), rows_of(self, count).each
        same, long, bad = copies(self, count), lengths(self, count), _nonfinite(self, count)
        known = self.indices if self.indices is not None and len(self.indices) == count else None
        for n, row in enumerate(rows):
            yield SpikeSample(
                n,
                None if known is None else known[n],
                None if losses is None else finite_or_none(losses[n]),
                nonfinite="input" if bad[n] else None,
                input_rms=None if sizes is None else finite_or_none(sizes[n]),
                call=number,
                input_max=finite_or_none(row.largest),
                copy_of=same[n],
                constant=row.constant,
                length=long[n],
            )


@dataclass(frozen=True, slots=True)
class _HeldBatch:
    """The calls of one step, and the versions of their tensors at its end."""

    step: int
    calls: tuple[_HeldCall, ...]
    versions: tuple[int, ...]
    note: str = ""

    @property
    def is_overwritten(self) -> bool:
        """True if the script has written to a tensor since."""
        return self.versions != _versions(self.calls)


class EarlierBatches:
    """Holds the batches of the last steps.

    It holds references until the script writes over a batch; from then on it holds copies, if they
    are small enough.

    Args:
        count: the number of steps.
        megabytes: the largest size of all copies.
    """

    def __init__(self, count: int, megabytes: int) -> None:
        self._held: deque[_HeldBatch] = deque(maxlen=count)
        self._count, self._bytes = count, megabytes << 20
        self._copies = False

    def __len__(self) -> int:
        return len(self._held)

    def add(
        self,
        step: int,
        calls: Sequence[RecordedCall],
        losses: Sequence[RowLosses | None],
        indices: Sequence[Sequence[int] | None],
    ) -> None:
        """Hold the batch of a step whose gradients are complete.

        Args:
            step: its number.
            calls: the models' calls, in order.
            losses: the terms of the loss of each backward.
            indices: the dataset indices of each call's samples; None if unknown.
        """
        if not self._count:
            return
        self._copies = self._copies or any(one.is_overwritten for one in self._held)
        if any(call.overwritten for call in calls):
            self._held.append(_HeldBatch(step, (), (), _WRITTEN))
            return
        one_for_all = losses[0] if len(losses) == 1 else None
        rows = losses if len(losses) == len(calls) else [one_for_all] * len(calls)
        held = tuple(
            _HeldCall(*_detached(call.args, call.kwargs), one, where)
            for call, one, where in zip(calls, rows, indices, strict=True)
        )
        if self._copies:
            if _size(held) * self._count > self._bytes:
                self._held.append(_HeldBatch(step, (), (), _LARGE))
                return
            held = tuple(_cloned(one) for one in held)
        self._held.append(_HeldBatch(step, held, _versions(held)))

    def records(self) -> tuple[EarlierBatch, ...]:
        """Return the batches with their samples, the earliest first."""
        found = []
        for batch in self._held:
            if batch.is_overwritten:
                found.append(EarlierBatch(batch.step, note=_WRITTEN))
                continue
            samples = [s for n, call in enumerate(batch.calls) for s in call.samples(n)]
            found.append(EarlierBatch(batch.step, tuple(samples), batch.note))
        return tuple(found)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the batches, as ``step411.call0.args.0``."""
        for batch in self._held:
            if batch.is_overwritten:
                continue
            for n, call in enumerate(batch.calls):
                for kind, tree in (("args", call.args), ("kwargs", call.kwargs)):
                    for path, tensor in find(tree, torch.Tensor):
                        yield f"step{batch.step}.call{n}.{kind}.{path}", tensor
                if call.rows is not None and call.rows.target is not None:
                    yield f"step{batch.step}.loss{n}.target", call.rows.target


def _detached(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs without their graph; they share memory and version with the originals."""
    args, kwargs = replaced((args, kwargs), torch.Tensor, lambda tensor: tensor.detach())
    return args, kwargs


def _cloned(call: _HeldCall) -> _HeldCall:
    args, kwargs = replaced((call.args, call.kwargs), torch.Tensor, torch.clone)
    rows = call.rows
    if rows is not None and rows.target is not None:
        rows = replace(rows, target=rows.target.clone())
    return _HeldCall(args, kwargs, rows, call.indices)


def _tensors_of(calls: Sequence[_HeldCall]) -> Iterator[torch.Tensor]:
    for call in calls:
        yield from (tensor for _, tensor in find((call.args, call.kwargs), torch.Tensor))
        if call.rows is not None and call.rows.target is not None:
            yield call.rows.target


def _versions(calls: Sequence[_HeldCall]) -> tuple[int, ...]:
    return tuple(map(version, _tensors_of(calls)))


def _size(calls: Sequence[_HeldCall]) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors_of(calls))


def _nonfinite(call: _HeldCall, count: int) -> list[bool]:
    """Return for each sample True if its inputs have NaN or Inf."""
    found = [False] * count
    for _, tensor in find((call.args, call.kwargs), torch.Tensor):
        if tensor.is_floating_point() and has_rows(tensor, count):
            sound = tensor.isfinite().reshape(count, -1).all(1).tolist()
            found = [old or not ok for old, ok in zip(found, sound, strict=True)]
    return found
