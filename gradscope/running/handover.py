"""Gives B the weights and the batch of A, and finds the samples that two batches share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.capture.differences import difference
from gradscope.capture.names import first_names
from gradscope.loading.batches import Batch
from gradscope.loading.workload import Workload
from gradscope.nesting import find, replaced
from gradscope.running.rerun import rerun


def hand_batch(a: Workload, b: Workload) -> None:
    """Call B with A's first batch, in B's dtype and on its device."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.dtype == a.dtype and tensor.is_floating_point()
        dtype = b.dtype if own else tensor.dtype
        copy = tensor.detach().to(b.device, dtype, copy=True)
        return copy.requires_grad_(tensor.requires_grad)

    with rerun(a) as step:
        parts = step.clone.args, step.clone.kwargs, step.clone.target
        batch = Batch(*replaced(parts, torch.Tensor, moved))
    b.batches = lambda: iter([batch])


def equal_parameters(a: Workload, b: Workload, names: Mapping[str, str]) -> tuple[int, int]:
    """Return how many of B's parameters equal A's before the copy, and how many count.

    Constant parameters, such as a norm's initial ones, are not counted.
    """
    ours, theirs = dict(first_names(a.model)), dict(first_names(b.model))
    equal = [
        torch.equal(theirs[name].detach(), ours[known].detach().to(theirs[name]))
        for name, known in names.items()
        if bool((theirs[name] != theirs[name].flatten()[:1]).any())
    ]
    return sum(equal), len(equal)


@torch.no_grad()
def hand_weights(a: Workload, b: Workload, names: Mapping[str, str]) -> None:
    """Copy A's parameters and buffers to B; ``names`` has A's parameters by B's."""
    ours, theirs = dict(first_names(a.model)), dict(first_names(b.model))
    for name, known in names.items():
        theirs[name].copy_(ours[known])
    modules = {name.rpartition(".")[0]: known.rpartition(".")[0] for name, known in names.items()}
    buffers = dict(a.model.named_buffers())
    for name, buffer in b.model.named_buffers():
        module, _, own = name.rpartition(".")
        value = buffers.get(f"{modules.get(module, module)}.{own}".lstrip("."))
        if value is not None and value.shape == buffer.shape:
            buffer.copy_(value)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of two tensors, along an axis, that belong to the same samples."""

    axis: int
    a: torch.Tensor
    b: torch.Tensor

    def of_a(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return A's rows, in the order of the shared samples."""
        return tensor.index_select(self.axis, self.a.to(tensor.device))

    def of_b(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return B's rows, in the same order."""
        return tensor.index_select(self.axis, self.b.to(tensor.device))

    def put(self, rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return B's tensor with new rows for these samples; the remaining rows stay."""
        rows = rows.to(tensor.device, tensor.dtype)
        return tensor.detach().index_copy(self.axis, self.b.to(tensor.device), rows)


@dataclass(frozen=True, slots=True)
class SharedSamples:
    """The samples that two batches share, by their places in each.

    Attributes:
        a, b: the place of each sample in A and in B.
        sizes: the sizes of the two batches.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    sizes: tuple[int, int]

    @property
    def complete(self) -> bool:
        """True if both batches have the same samples: sums over samples then agree too."""
        return len(self.a) == self.sizes[0] == self.sizes[1]

    def part(self, a: torch.Tensor, b: torch.Tensor) -> Part | None:
        """Return the position of the samples in a tensor of A and in B's; None without one.

        If the two tensors can be read in several ways, the closest one counts: sixteen rows may be
        sixteen positions, or four samples of four.
        """
        parts = [Part(axis, *self._rows(a.shape[axis])) for axis in self._axes(a, b)]
        if not parts or (len(parts) == 1 and a.shape != b.shape):
            return parts[0] if parts else None
        errors = [difference(part.of_a(a), part.of_b(b)).error for part in parts]
        closest = min(range(len(parts)), key=errors.__getitem__)
        if a.shape == b.shape and difference(a, b).error < errors[closest]:
            return None
        return parts[closest]

    def _axes(self, a: torch.Tensor, b: torch.Tensor) -> Iterator[int]:
        """Yield the possible axes of samples: the first, which may have several rows for each
        sample, and the second."""
        for axis in range(min(2, a.dim())):
            rows, rest = divmod(a.shape[axis], self.sizes[0])
            wanted = list(a.shape)
            wanted[axis] = rows * self.sizes[1]
            if rows and not rest and list(b.shape) == wanted and (rows == 1 or axis == 0):
                yield axis

    def _rows(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        each = torch.arange(length // self.sizes[0], device="cpu")
        pair = (torch.tensor(places, device="cpu") for places in (self.a, self.b))
        a, b = ((places[:, None] * len(each) + each).flatten() for places in pair)
        return a, b


def shared_samples(a: Workload, b: Workload) -> SharedSamples | None:
    """Return the samples that both first batches contain, with targets, bit for bit.

    None if the batches are identical, share no sample, or have no axis of samples.
    """
    ours, theirs = _tensors(a), _tensors(b)
    if [(t.shape[1:], t.dtype) for t in ours] != [(t.shape[1:], t.dtype) for t in theirs]:
        return None
    if any(len({len(tensor) for tensor in tensors}) != 1 for tensors in (ours, theirs)):
        return None
    left: dict[bytes, list[int]] = {}
    for place, row in enumerate(_rows(ours)):
        left.setdefault(row, []).append(place)
    pairs = [(left[row].pop(0), place) for place, row in enumerate(_rows(theirs)) if left.get(row)]
    sizes = len(ours[0]), len(theirs[0])
    if not pairs or (sizes[0] == sizes[1] == len(pairs) and all(x == y for x, y in pairs)):
        return None
    return SharedSamples(tuple(x for x, _ in pairs), tuple(y for _, y in pairs), sizes)


def _tensors(workload: Workload) -> list[torch.Tensor]:
    """Return the tensors of the arguments and the target."""
    with rerun(workload) as step:
        target = step.clone.target if step.clone.target is not None else workload.criterion.target
        parts: Any = step.clone.args, step.clone.kwargs, target
        return [t.detach().cpu() for _, t in find(parts, torch.Tensor) if t.dim()]


def _rows(tensors: list[torch.Tensor]) -> list[bytes]:
    """Return each sample's data as bytes."""
    flat = [tensor.reshape(len(tensor), -1).contiguous() for tensor in tensors]
    return [
        b"".join(tensor[n].view(torch.uint8).numpy().tobytes() for tensor in flat)
        for n in range(len(flat[0]))
    ]
