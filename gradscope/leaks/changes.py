"""Differences between the outputs of two batches, by row and position, and their rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gradscope.leaks.forwards import Forwards, widened
from gradscope.leaks.meaning import Meaning

#: A change below this share of the outputs' spread may be rounding: it is checked in float64.
SMALL = 1e-2
#: In float64 rounding shrinks by nine orders of magnitude; at least this share of a leak stays.
LEFT = 1e-4
#: Without float64, a change above this is not rounding.
CERTAIN = 1e-4
#: Below this a change that float64 does not remove may be rounding all the same.
TINY = 1e-5
#: Outputs of which such a share is NaN cannot be compared.
NANS = 0.5
#: Multiple of the difference of two equal runs that a change must exceed.
NOISE = 8.0

Outputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """Dimensions of the outputs that are rows and positions.

    Attributes:
        rows: the number of rows; None: the model has no batch axis.
        positions: the number along the time axis; None: there is none.
        batch, time: the dimensions in the input.
    """

    rows: int | None
    positions: int | None
    batch: int = 0
    time: int = 1

    @classmethod
    def of(cls, meaning: Meaning, rows: int) -> Layout:
        """Return the layout of the first sequence, else of the first source."""
        first = next(iter([*meaning.sequences, *meaning.sources]), None)
        batch = None if first is None else first.batch
        time = None if first is None else first.time
        return cls(
            None if batch is None else rows,
            meaning.positions,
            batch or 0,
            1 if time is None else time,
        )

    def by_row(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor as [rows, rest]; None if it has no rows."""
        if self.rows is None:
            return tensor.reshape(1, -1)
        # The state of a recurrent network, [layers, N, D], is no prediction.
        for dim in (self.batch, 0):
            if dim < tensor.dim() and tensor.size(dim) == self.rows:
                return tensor.movedim(dim, 0).reshape(self.rows, -1)
        return None

    def by_position(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor as [rows, positions, rest]; None if it has no positions."""
        if self.positions is None:
            return None
        if self.rows is None:
            time = self._dimension(tensor, self.time, self.positions)
            if time is None:
                return None
            return tensor.movedim(time, 0).reshape(1, self.positions, -1)
        batch = self._dimension(tensor, self.batch, self.rows)
        if batch is None:
            return None
        time = self._dimension(tensor, self.time, self.positions, batch)
        if time is None:
            return None
        moved = tensor.movedim((batch, time), (0, 1))
        return moved.reshape(self.rows, self.positions, -1)

    @staticmethod
    def _dimension(tensor: torch.Tensor, usual: int, size: int, but: int = -1) -> int | None:
        if usual < tensor.dim() and usual != but and tensor.size(usual) == size:
            return usual
        fitting = [d for d in range(tensor.dim()) if d != but and tensor.size(d) == size]
        return fitting[0] if len(fitting) == 1 else None


@dataclass(frozen=True, slots=True)
class Change:
    """A forbidden change of the outputs.

    Attributes:
        effect: the largest change, as a share of the outputs' spread.
        rows: bool [rows], the changed rows.
        where: bool [rows, positions], the changed places; None for outputs without positions.
        doubt: the reason why it may not be a leak.
    """

    effect: float
    rows: torch.Tensor
    where: torch.Tensor | None = None
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds the output places that must not change: positions, or rows if there are no positions.

    Attributes:
        places: bool [rows, positions]; None: outputs with positions count by their rows.
        rows: bool [rows]; None: outputs without positions do not count.
    """

    places: torch.Tensor | None
    rows: torch.Tensor | None


def judged_outputs(outputs: Outputs, layout: Layout, kept: Kept) -> list[str]:
    """Return the outputs that can be judged."""
    found = []
    for path, tensor in outputs.items():
        positional = kept.places is not None and layout.by_position(tensor) is not None
        if positional or (kept.rows is not None and layout.by_row(tensor) is not None):
            found.append(path)
    return found


def change(one: Outputs, other: Outputs, layout: Layout, kept: Kept) -> Change | None:
    """Return the forbidden change between two outputs; None if all judged elements have the same
    bits."""
    effect, rows, where = 0.0, None, None
    for path, tensor in one.items():
        changed = other.get(path)
        if changed is None or changed.shape != tensor.shape:
            continue
        found = _differing(tensor, changed, layout, kept)
        if found is None or not bool(found[0].any()):
            continue
        differs, size = found
        effect = max(effect, size / spread(tensor))
        own_rows = differs.any(dim=1) if differs.dim() == 2 else differs
        rows = own_rows if rows is None else rows | own_rows
        if differs.dim() == 2:
            where = differs if where is None else where | differs
    return None if rows is None else Change(effect, rows, where)


def _differing(
    one: torch.Tensor, other: torch.Tensor, layout: Layout, kept: Kept
) -> tuple[torch.Tensor, float] | None:
    """Return the places where two tensors must be equal but differ, and the largest difference."""
    a, b = layout.by_position(one), layout.by_position(other)
    places = kept.places
    if a is None or b is None or places is None:
        a, b = layout.by_row(one), layout.by_row(other)
        places = kept.rows
        if a is None or b is None or places is None:
            return None
    places = places.to(a.device)
    differs = unequal(a, b).any(dim=-1) & places
    if not bool(differs.any()):
        return differs, 0.0
    distance = (a[differs].to(torch.float64) - b[differs].to(torch.float64)).abs()
    distance = distance[distance.isfinite()]
    return differs, float(distance.max()) if distance.numel() else float("inf")


def unequal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the elements that differ; NaN equals NaN."""
    if a.is_floating_point() or a.is_complex():
        return (a != b) & ~(a.isnan() & b.isnan())
    return a != b


def spread(tensor: torch.Tensor) -> float:
    """Return the standard deviation of the finite numbers; if it is 0, the largest magnitude, or
    1."""
    numbers = tensor.detach().to(torch.float64 if not tensor.is_complex() else torch.complex128)
    numbers = numbers[numbers.isfinite()]
    value = float(numbers.std(correction=0).abs()) if numbers.numel() > 1 else 0.0
    if value > 0:
        return value
    return float(numbers.abs().max()) or 1.0 if numbers.numel() else 1.0


def tried(
    forwards: Forwards,
    base: Mapping[str, torch.Tensor],
    changed: Mapping[str, torch.Tensor],
    layout: Layout,
    kept: Kept,
) -> Change | None:
    """Return the forbidden change between two batches that is neither noise nor rounding; None
    without one.

    Equal bits are clean. Otherwise the base runs again, for the noise, and a small change is
    checked in float64: there rounding nearly vanishes, and a leak stays.
    """
    found = change(forwards.outputs(base), forwards.outputs(changed), layout, kept)
    if found is None:
        why = _unseen(forwards.outputs(base), forwards.outputs(changed), layout, kept)
        return (
            None
            if why is None
            else Change(0.0, torch.zeros(0, dtype=torch.bool, device="cpu"), None, why)
        )
    noise = change(forwards.outputs(base), forwards.again(base), layout, kept)
    if noise is not None and found.effect <= NOISE * noise.effect:
        words = (
            f"two equal runs differ by {noise.effect:.1e} already, this one by {found.effect:.1e}"
        )
        return Change(found.effect, found.rows, found.where, words)

    def pair(wide: Forwards) -> tuple[Outputs, Outputs]:
        return wide.again(widened(base)), wide.again(widened(changed))

    return unless_rounding(forwards, found, pair, layout, kept)


def _unseen(one: Outputs, other: Outputs, layout: Layout, kept: Kept) -> str | None:
    """Return why equal outputs prove nothing (NaN, other shapes); None if they do."""
    for path in judged_outputs(one, layout, kept):
        tensor, changed = one[path], other.get(path)
        if changed is None or changed.shape != tensor.shape:
            return f"the output `{path}` has another shape after the change"
        if tensor.is_floating_point() and float(tensor.isnan().float().mean()) > NANS:
            return "the outputs are NaN"
    return None


def moves(one: Outputs, other: Outputs) -> bool:
    """Return True if two outputs of equal shapes differ in any element."""
    return any(
        path in other and other[path].shape == t.shape and bool(unequal(t, other[path]).any())
        for path, t in one.items()
    )


def unless_rounding(
    forwards: Forwards,
    found: Change | None,
    pair: Callable[[Forwards], tuple[Outputs, Outputs]],
    layout: Layout,
    kept: Kept,
    *,
    shapes: bool = False,
) -> Change | None:
    """Return the change if it is not rounding; a doubt if that is unknown.

    ``pair`` computes the two outputs again, with the model in float64. If the two differ in their
    ``shapes`` or order, every sum rounds differently: a change of a hundred last bits is then no
    leak.
    """
    if found is None or found.effect > SMALL:
        return found
    if shapes and found.effect < 100 * _last_bit(forwards):
        return None
    wide = forwards.wide()
    exact: Change | None = None
    if wide is not None:
        try:
            exact = change(*pair(wide), layout, kept)
        except Exception:
            wide = None  # an operation without float64
        else:
            forwards.forwards += wide.forwards
    doubt = f"a change of {found.effect:.1e} may be rounding"
    if wide is None:
        if found.effect > CERTAIN:
            return found
        why = f"{doubt}: the model does not run in float64"
        return Change(found.effect, found.rows, found.where, why)
    if exact is None or exact.effect <= LEFT * found.effect:
        return None
    if exact.effect < TINY and found.effect < TINY:
        # A part that always computes in float32 rounds in float64 too.
        why = f"{doubt}: float64 does not remove it"
        return Change(found.effect, found.rows, found.where, why)
    return Change(found.effect, exact.rows, exact.where)


def _last_bit(forwards: Forwards) -> float:
    """Return the distance between neighbouring numbers of the dtype, as a share of the number."""
    workload = forwards.workload
    dtypes = [d for d in (workload.dtype, workload.autocast) if d is not None]
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def with_positions(
    one: Outputs, layout: Layout, other: Outputs, other_layout: Layout
) -> dict[str, bool]:
    """Find outputs with positions in two runs of different lengths; one size may fit by chance."""
    return {
        path: layout.by_position(t) is not None
        and other_layout.by_position(other[path]) is not None
        for path, t in one.items()
        if path in other
    }


def ordered(
    outputs: Outputs,
    layout: Layout,
    positions: int,
    side: str = "right",
    like: Mapping[str, bool] | None = None,
) -> dict[str, torch.Tensor]:
    """Return outputs as [rows, positions, rest], or as [rows, rest].

    If they have more positions, the first are kept, or the last if the padding is on the left
    ``side``. ``like`` has the outputs with positions, if another run showed them.
    """
    found = {}
    for path, tensor in outputs.items():
        aligned, by_row = layout.by_position(tensor), layout.by_row(tensor)
        if aligned is not None and (like is None or like.get(path, True)):
            left = side == "left"
            found[path] = aligned[:, -positions:] if left else aligned[:, :positions]
        elif by_row is not None:
            found[path] = by_row
    return found
