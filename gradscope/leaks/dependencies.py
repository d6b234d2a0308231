"""The second test: finds nonzero gradients of outputs with respect to inputs.

It also makes a map of the inputs that each output depends on: a triangle for a causal model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradscope.leaks.forwards import detached, predictions
from gradscope.leaks.meaning import Given
from gradscope.records.leaks import DependencyMap

if TYPE_CHECKING:
    from gradscope.leaks.subject import Subject


@dataclass(frozen=True, slots=True)
class Gradients:
    """The dependencies from one forward and up to two backward passes.

    Attributes:
        outputs: the outputs of the pass.
        time: [rows, positions], the size of the gradient from the row's cut to each input
            position; None if not computed.
        samples: [rows], the size of the gradient from the control row to every row; None if not
            computed.
        reason: the reason why none was computed.
    """

    outputs: dict[str, torch.Tensor]
    time: torch.Tensor | None = None
    samples: torch.Tensor | None = None
    reason: str | None = None


def gradients(subject: Subject) -> Gradients:
    """Run the unchanged rows once, with a graph that starts at the sources."""
    if not subject.wishes.backward:
        outputs = subject.forwards.again(subject.rows.base)
        return Gradients(outputs, reason="no gradient: only forward passes were requested")
    return subject.forwards.embedded(
        subject.rows.base, lambda output, leaves: _taken(subject, output, leaves)
    )


def _taken(subject: Subject, output: Any, leaves: dict[str, list[torch.Tensor]]) -> Gradients:
    outputs = detached(output)
    found = [
        (path, tensor)
        for path, tensor in predictions(output)
        if tensor.requires_grad and tensor.is_floating_point()
    ]
    targets = [leaf for path in leaves for leaf in leaves[path] if leaf.requires_grad]
    if not found or not targets:
        what = "no output has a graph" if not found else "no embedding took the tokens"
        return Gradients(outputs, reason=f"no gradient: {what}")
    layout = subject.layout
    time = samples = None
    try:
        if (subject.causal or subject.wishes.maps) and subject.positions > 1:
            time = _over_time(subject, [t for _, t in found], leaves)
        if layout.rows is not None and layout.rows > 1:
            samples = _over_samples(subject, [t for _, t in found], leaves)
    except RuntimeError as error:  # an operation whose backward is not there
        return Gradients(outputs, time, samples, f"no gradient: {str(error).splitlines()[0]}")
    return Gradients(outputs, time, samples)


def _weights(tensor: torch.Tensor) -> torch.Tensor:
    coins = torch.Generator().manual_seed(7)
    weights = torch.rand(tensor.shape, generator=coins) + 0.5
    signs = torch.randint(0, 2, tensor.shape, generator=coins) * 2 - 1
    return (weights * signs).to(tensor)


def _over_time(
    subject: Subject, outputs: list[torch.Tensor], leaves: dict[str, list[torch.Tensor]]
) -> torch.Tensor | None:
    layout, parts = subject.layout, []
    for output in outputs:
        aligned = layout.by_position(output)
        if aligned is None:
            continue
        for row, cut in enumerate(subject.cuts):
            if cut is not None and row < aligned.shape[0]:
                picked = aligned[row, cut]
                parts.append((picked * _weights(picked)).sum())
    sent = _sent(subject, parts, subject.meaning.sequences, leaves)
    if sent is None:
        return None
    total = torch.zeros(subject.rows.count, subject.positions, dtype=torch.float64)
    for one, size in sent:
        assert one.time is not None
        if one.batch is None:
            total[:1] += size.movedim(one.time, 0).reshape(subject.positions, -1).sum(1)[None]
            continue
        moved = size.movedim((one.batch, one.time), (0, 1))
        total += moved.reshape(*total.shape, -1).sum(-1).cpu()
    return total


def _over_samples(
    subject: Subject, outputs: list[torch.Tensor], leaves: dict[str, list[torch.Tensor]]
) -> torch.Tensor | None:
    layout, control, parts = subject.layout, subject.rows.control, []
    for output in outputs:
        by_row = layout.by_row(output)
        if by_row is not None:
            parts.append((by_row[control] * _weights(by_row[control])).sum())
    sources = [one for one in subject.meaning.sources if one.batch is not None]
    sent = _sent(subject, parts, sources, leaves)
    if sent is None:
        return None
    total = torch.zeros(subject.rows.count, dtype=torch.float64)
    for one, size in sent:
        if one.batch is not None and size.size(one.batch) == subject.rows.count:
            total += size.movedim(one.batch, 0).reshape(subject.rows.count, -1).sum(-1).cpu()
    return total


def _sent(
    subject: Subject,
    parts: list[torch.Tensor],
    sources: list[Given],
    leaves: dict[str, list[torch.Tensor]],
) -> list[tuple[Given, torch.Tensor]] | None:
    """Return the size of the gradient from outputs to each source, from one backward."""
    own = [
        (one, leaf) for one in sources for leaf in leaves.get(one.path, ()) if leaf.requires_grad
    ]
    if not parts or not own:
        return None
    subject.forwards.backwards += 1
    start = torch.stack([part.to(torch.float64) for part in parts]).sum()
    sent = torch.autograd.grad(
        start, [leaf for _, leaf in own], retain_graph=True, allow_unused=True
    )
    return [
        (one, gradient.abs().to(torch.float64).nan_to_num(0.0))
        for (one, _), gradient in zip(own, sent, strict=True)
        if gradient is not None
    ]


def maps(subject: Subject) -> tuple[DependencyMap, ...]:
    """Return the dependency maps over time and over the samples of the batch."""
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
