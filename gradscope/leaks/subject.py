"""The subject that every axis judges: the model, rows of one sample, earlier results; and the
second test, which finds nonzero gradients of outputs with respect to inputs.

The gradients also give a map of the inputs that each output depends on: a triangle for a causal
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradscope.capture.names import module_names
from gradscope.errors import OptionError, did_you_mean
from gradscope.leaks.changes import Layout
from gradscope.leaks.forwards import (
    Forwards,
    Rows,
    Tensors,
    cuts,
    detached,
    future,
    predictions,
    spread_over,
    tile,
    unmasked,
)
from gradscope.leaks.meaning import HIDDEN, LENGTHS, MASK, PREFIX, TOKENS, Given, Meaning, values_of
from gradscope.records.leaks import AXES, DependencyMap


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
    weights = torch.rand(tensor.shape, generator=coins, device="cpu") + 0.5
    signs = torch.randint(0, 2, tensor.shape, generator=coins, device="cpu") * 2 - 1
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
    total = torch.zeros(subject.rows.count, subject.positions, dtype=torch.float64, device="cpu")
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
    total = torch.zeros(subject.rows.count, dtype=torch.float64, device="cpu")
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


@dataclass(frozen=True, slots=True)
class Masked:
    """A row with masked positions: ``kind`` is right, left or inside."""

    row: int
    kind: str
    where: torch.Tensor  # bool [positions], the masked ones


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's options for a leak check.

    Attributes:
        causal: True if the model must be causal; None: inferred.
        axes: the dimension of each axis.
        padding: the padding token.
        only: the axes to judge; empty: all.
        maps: make dependency maps.
        backward: also take gradients.
    """

    causal: bool | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    padding: float | None = None
    only: Sequence[str] = ()
    maps: bool = False
    backward: bool = True

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the axes that the user named."""
        return (*self.axes, *self.only)

    def check(self) -> None:
        """Refuse unknown axes.

        Raises:
            OptionError: the message names the closest.
        """
        for name in self.asked:
            if name not in AXES:
                raise OptionError(
                    f"there is no axis `{name}`", help=did_you_mean(name, AXES) or ", ".join(AXES)
                )


@dataclass
class Subject:
    """The model, its batch and the roles of its tensors.

    Attributes:
        forwards: runs the model.
        rows: rows of one sample.
        wishes: the user's options.
        causal: True if the model must be causal; None if unknown.
        mixes: True if rows depend on one another.
    """

    forwards: Forwards
    rows: Rows
    wishes: Wishes
    causal: bool | None
    mixes: bool = False
    masked: tuple[Masked, ...] = ()
    mask: Given | None = None
    hole: Any = 0
    masks_fail: str | None = None
    pooled: bool = True
    notices: list[str] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        return self.forwards.workload.model

    @property
    def meaning(self) -> Meaning:
        return self.forwards.meaning

    @cached_property
    def layout(self) -> Layout:
        """The layout of the outputs."""
        return Layout.of(self.meaning, self.rows.count)

    @property
    def positions(self) -> int:
        """The number of positions along the time axis; 0 without one."""
        return self.meaning.positions or 0

    @cached_property
    def few(self) -> int:
        """A small number of rows; if possible, it does not divide other sizes."""
        sizes = [n for one in self.meaning.given for n in one.tensor.shape[1:]]
        sizes += [n for p in self.model.parameters() for n in p.shape]
        return min((5, 7, 3, 11), key=lambda count: sum(n % count == 0 for n in sizes))

    @cached_property
    def prefix(self) -> int:
        """The number of first positions that may attend to one another (a prefix), from an
        input."""
        given = self.meaning.of(PREFIX)
        return max((int(one.tensor.max()) for one in given if one.tensor.numel()), default=0)

    @cached_property
    def cuts(self) -> list[int | None]:
        """The cut of each row, after which the future begins; None: the row stays unchanged."""
        found: list[int | None] = [None] * self.rows.count
        masked = {one.row for one in self.masked}
        free = [row for row in range(self.rows.count) if row not in masked]
        if self.rows.count > 2:
            free.remove(self.rows.control)
        wanted = [cut for cut in cuts(self.positions) if cut >= self.prefix - 1]
        if wanted and len(free) < len(wanted):  # few rows: the ends and what lies between, oddly
            order = [(len(wanted) * n) // len(free) + n % 2 for n in range(len(free))]
            wanted = [wanted[min(n, len(wanted) - 1)] for n in order]
        for row, cut in zip(free, wanted, strict=False):
            found[row] = cut
        return found

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients of the base's outputs."""
        return gradients(self)

    @cached_property
    def hidden(self) -> torch.Tensor:
        """Return the masked positions of the base, bool [rows, positions]."""
        length = 0
        if self.mask is not None:
            length = self.positions
            if self.mask.time is not None:
                length = self.mask.tensor.size(self.mask.time)
        hidden = torch.zeros(self.rows.count, length, dtype=torch.bool, device="cpu")
        for one in self.masked:
            hidden[one.row] = one.where
        return hidden

    @cached_property
    def hides(self) -> list[Given]:
        """Return the sources whose positions the mask hides."""
        if self.mask is None:
            return []
        length = self.hidden.shape[1]
        own = [
            one
            for one in self.meaning.sources
            if one.time is not None and one.tensor.size(one.time) == length
        ]
        side = [one for one in own if _side(one) == _side(self.mask)]
        return side or own

    def padded_tokens(self) -> Tensors:
        """Return the tokens of the base, with padding tokens at padded positions."""
        ends = torch.zeros_like(self.hidden)
        for one in self.masked:
            ends[one.row] = one.where & (one.kind != "inside")
        base, padding = self.rows.base, self.rows.padding
        return {
            one.path: base[one.path].masked_fill(
                spread_over(one, ends, base[one.path]), int(padding or 0)
            )
            for one in self.hides
            if one.role == TOKENS
        }

    @cached_property
    def changed(self) -> Tensors:
        """Return the base with other values after the cut of some rows, and at masked positions of
        others.

        If rows depend on one another, each axis makes its own batches.
        """
        where: dict[str, torch.Tensor] = {}
        if self.causal and self.positions > 1:
            later = future(self.rows.count, self.positions, self.cuts)
            where |= {one.path: later for one in self.meaning.sequences}
        for one in self.hides:
            own = where.get(one.path)
            where[one.path] = self.hidden if own is None else own | self.hidden
        return self.differing(where)

    def tiled(self, count: int) -> Tensors:
        """Return ``count`` rows of one sample, without masked positions."""
        return unmasked(self.meaning, tile(self.meaning, count))

    def small(self) -> tuple[int, Tensors]:
        """Return a few rows, or those of the batch, and their number."""
        if self.rows.tiled:
            return self.few, self.tiled(self.few)
        return self.rows.count, self.rows.base

    def sequences_differing(self, where: torch.Tensor, base: Tensors | None = None) -> Tensors:
        """Return a batch with other values at these positions of its sequences."""
        return self.differing({one.path: where for one in self.meaning.sequences}, base)

    def differing(self, where: Mapping[str, torch.Tensor], base: Tensors | None = None) -> Tensors:
        """Return a batch with other values at these positions of its sources, by their paths."""
        base = self.rows.base if base is None else base
        new = {
            one.path: self.rows.changed(one, where[one.path], base)
            for one in self.meaning.sources
            if one.path in where
        }
        return {**base, **new}

    @cached_property
    def normalisers(self) -> list[tuple[str, nn.Module]]:
        """Return the modules that normalise over the batch in train mode, by name."""
        names = module_names(self.model)
        return [(name, module) for module, name in names.items() if isinstance(module, _BatchNorm)]


def _side(one: Given) -> bool:
    return one.name.startswith(("decoder", "tgt", "dec_"))


def half(positions: int) -> int:
    """Return the number of positions left when a row is padded by half."""
    return max(1, positions // 2)


def masked_rows(positions: int, kinds: Sequence[str], *, first: int) -> tuple[Masked, ...]:
    """Return two rows of each kind, from ``first`` on: padded on a side, or with holes."""
    found = []
    for n, kind in enumerate(kind for kind in kinds for _ in range(2)):
        where = torch.zeros(positions, dtype=torch.bool, device="cpu")
        much = n % 2 == 0
        if kind == "right":
            where[half(positions) if much else positions - 1 :] = True
        elif kind == "left":
            where[: positions - half(positions) if much else 1] = True
        else:
            where[1 : positions - 1 : 2 if much else 3] = True
        if positions > 1 and bool(where.any()):
            found.append(Masked(first + n, kind, where))
    return tuple(found)


def kinds_of(mask: Given, *, general: bool) -> tuple[str, ...]:
    """Return the kinds of positions that the mask may hide: those in the batch; without any, a
    row's end.

    ``general``: the model accepts any mask, so all kinds apply.
    """
    if mask.role == HIDDEN:
        return ("inside",)
    if mask.role == LENGTHS or mask.time is None:
        return ("right",)
    dims = (mask.time,) if mask.batch is None else (mask.batch, mask.time)
    hidden = (mask.tensor != mask.keep).movedim(dims, tuple(range(len(dims))))
    rows = hidden.reshape(-1 if mask.batch is not None else 1, mask.tensor.size(mask.time))
    shown = dict.fromkeys(kind for row in rows for kind in _shown(row))
    return tuple(shown) or (("right", "left", "inside") if general else ("right",))


def _shown(row: torch.Tensor) -> Iterator[str]:
    kept = (~row).nonzero().reshape(-1).tolist()
    if not kept or len(kept) == len(row):
        return
    if kept[-1] < len(row) - 1:
        yield "right"
    if kept[0] > 0:
        yield "left"
    if kept[-1] - kept[0] + 1 > len(kept):
        yield "inside"


def with_masks(base: Tensors, mask: Given, masked: tuple[Masked, ...], hole: Any) -> Tensors:
    """Return the base with those positions masked."""
    tensor = base[mask.path].clone()
    for one in masked:
        if mask.role == LENGTHS:
            if one.kind == "right":
                tensor[one.row] = int((~one.where).sum())
            continue
        assert mask.role in (MASK, HIDDEN) and mask.batch is not None and mask.time is not None
        row = tensor.select(mask.batch, one.row)
        time = mask.time - (mask.batch < mask.time)
        index = one.where.nonzero().squeeze(1).to(tensor.device)
        row.index_fill_(time, index, hole)
    return {**base, mask.path: tensor}


def hole_of(mask: Given) -> Any:
    """Return the mask's value for a masked position."""
    keep, tensor = mask.keep, mask.tensor
    others = [value for value in values_of(tensor) if value != keep]
    if others:
        return others[0]
    if isinstance(keep, bool) or tensor.dtype == torch.bool:
        return not keep
    if tensor.is_floating_point() and keep == 0:
        return float("-inf")
    return 0 if keep else 1
