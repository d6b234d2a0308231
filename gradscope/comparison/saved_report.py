"""A saved report, with its tensors by place, and its calls as time went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gradscope.comparison.alignment import CallKey
from gradscope.records.full_samples import Sketch
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.tensors import TensorRecord, TensorStats


class TensorKey(NamedTuple):
    """A tensor of a call, or of the parameter ``path``, where ``call`` is None; as in a sketch."""

    call: CallKey | None
    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What a report holds of one run.

    Attributes:
        file: it was read from.
        report: as it was read.
        statistics, sketches: of its tensors.
        alike: what says of a call that it is like another.
    """

    file: str
    report: Report
    statistics: dict[TensorKey, TensorStats]
    sketches: dict[TensorKey, Sketch]
    alike: dict[CallKey, tuple[object, ...]]

    @classmethod
    def of(cls, report: Report, file: str) -> SavedRun:
        """What is in a report."""
        around = {call.name.rpartition(".")[0] for call in report.calls if call.name}
        alike: dict[CallKey, tuple[object, ...]] = {
            (c.name, c.call): (c.name in around, tuple(t.activation.shape for t in c.outputs))
            for c in report.calls
        }
        sketches = {
            TensorKey(None if s.call is None else (s.name, s.call), s.kind, s.path): s
            for s in report.sketches
        }
        return cls(file, report, dict(_statistics(report)), sketches, alike)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its parameters."""
        return {parameter.name: parameter.shape for parameter in self.report.parameters}

    @property
    def dtypes(self) -> tuple[str | None, ...]:
        """That numbers of the run have."""
        return self.report.run.dtype, self.report.run.autocast


def timeline(calls: tuple[ModuleCall, ...]) -> Iterator[tuple[ModuleCall, bool]]:
    """Each call as it begins, and again (True) as it has returned."""
    running: list[ModuleCall] = []
    for call in sorted(calls, key=lambda call: call.order):
        while running and not _inside(call.name, running[-1].name):
            yield running.pop(), True
        yield call, False
        running.append(call)
    while running:
        yield running.pop(), True


def _inside(name: str, outer: str) -> bool:
    return name != outer and (not outer or name.startswith(f"{outer}."))


def _statistics(report: Report) -> Iterator[tuple[TensorKey, TensorStats]]:
    for call in report.calls:
        for side, tensors in (("input", call.inputs), ("output", call.outputs)):
            for tensor in tensors:
                yield from _of_tensor((call.name, call.call), side, tensor)
    for parameter in report.parameters:
        yield TensorKey(None, "value", parameter.name), parameter.value
        if parameter.gradient is not None:
            yield TensorKey(None, "gradient", parameter.name), parameter.gradient


def _of_tensor(
    call: CallKey, side: str, tensor: TensorRecord
) -> Iterator[tuple[TensorKey, TensorStats]]:
    yield TensorKey(call, side, tensor.path), tensor.activation
    if tensor.gradient is not None:
        yield TensorKey(call, f"grad_{side}", tensor.path), tensor.gradient
