"""Which input each output depends on, as a map: of a causal model a triangle."""

from __future__ import annotations

from gradscope.leaks.subject import Subject
from gradscope.records.leaks import DependencyMap


def maps(subject: Subject) -> tuple[DependencyMap, ...]:
    """The maps that gradients gave, over time and over the samples of the batch."""
    found = []
    time, samples = subject.gradients.time, subject.gradients.samples
    if time is not None:
        rows = sorted((cut, row) for row, cut in enumerate(subject.cuts) if cut is not None)
        values = tuple(tuple(time[row].tolist()) for _, row in rows)
        outputs = tuple(cut for cut, _ in rows)
        inputs = tuple(range(subject.positions))
        found.append(DependencyMap("time", "gradient", outputs, inputs, values))
    if samples is not None:
        control, inputs = subject.rows.control, tuple(range(subject.rows.count))
        values = (tuple(samples.tolist()),)
        found.append(DependencyMap("batch", "gradient", (control,), inputs, values))
    return tuple(found)
