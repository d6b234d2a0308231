"""The origins of NaN and Inf: each origin has a bit, each storage the bits of its origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradscope.capture.stats import Measured
from gradscope.explain.non_finite.levels import NAN
from gradscope.explain.non_finite.reasons import Reason
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.tensors import memory_of


@dataclass(frozen=True, slots=True)
class BecameNaN:
    """The first operation that made a NaN of an origin's infinities."""

    op: str
    site: CallSite
    reason: str | None


@dataclass(slots=True)
class ObservedOrigin:
    """Where an operation made NaN and Inf, or something that was there before.

    Attributes:
        kind: INF or NAN.
        group: the function call, or the node of backward, that made it.
        reason: the arithmetic in words.
        deliberate: put there on purpose, as the -inf of a mask: nothing to report alone.
        name: of the parameter, buffer or input that held it.
        spread: the names it went on to, in order.
        reached: it came to something that stays.
        of_infinities: a NaN, made of infinities that were put there on purpose.
        and_then: what the same function then made NaN by.
        function: of a node of backward, whose backward it is.
    """

    kind: int
    phase: str
    op: str | None
    site: CallSite
    reason: Reason
    group: object = None
    deliberate: bool = False
    name: str | None = None
    inputs: tuple[Measured, ...] = ()
    spread: dict[str, None] = field(default_factory=dict)
    became_nan: BecameNaN | None = None
    reached: bool = False
    of_infinities: bool = False
    and_then: str | None = None
    function: str | None = None

    @property
    def key(self) -> object:
        """What another run of the same line would make again."""
        # One step of the optimizer is one place for all parameters.
        name = None if self.phase == "step" else self.name
        site = self.site
        return self.phase, self.op, site.file, site.line, site.module, name, self.deliberate


class ObservedOrigins:
    """All origins, oldest first; a set of them is an int, one bit for each."""

    def __init__(self) -> None:
        self.all: list[ObservedOrigin] = []
        self._known: dict[object, int] = {}
        # A weak reference keeps the address from being given to another storage.
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, origin: ObservedOrigin) -> int:
        """The bit of an origin; that of an earlier one where the same line made the same."""
        number = self._known.setdefault(origin.key, len(self.all))
        if number == len(self.all):
            self.all.append(origin)
        return 1 << number

    def made_in(self, group: object, function: str, site: CallSite) -> int:
        """The bit of what a call of a function, or the function on that line, made in forward."""
        for number, origin in enumerate(self.all):
            same = (origin.op or "").strip("_") == function
            at = (origin.site.file, origin.site.line)
            if origin.group == group or (same and at == (site.file, site.line)):
                return 1 << number
        return 0

    def members(self, mask: int) -> Iterator[ObservedOrigin]:
        """The origins of a mask, oldest first."""
        while mask:
            yield self.all[(mask & -mask).bit_length() - 1]
            mask &= mask - 1

    def of(self, tensor: torch.Tensor) -> int:
        """What is held by the memory of a tensor."""
        return self._held.get(memory_of(_holder(tensor)), (None, 0))[1]

    def put(self, tensor: torch.Tensor, mask: int, *, overwritten: bool) -> None:
        """Its memory holds these now; those from before too, unless all of it is written."""
        tensor = _holder(tensor)
        memory = memory_of(tensor)
        if not memory:
            return
        held = self._held.get(memory)
        if held is None:
            self._held[memory] = StorageWeakRef(tensor.untyped_storage()), mask  # type: ignore[no-untyped-call]
        else:
            self._held[memory] = held[0], mask if overwritten else held[1] | mask

    def living(self) -> int:
        """What is held by memory that is still in use."""
        mask = 0
        for reference, held in self._held.values():
            mask |= 0 if reference.expired() else held  # type: ignore[no-untyped-call]
        return mask

    def spread(self, mask: int, name: str) -> None:
        """Note that these have come to something with this name."""
        for origin in self.members(mask):
            if origin.name != name:
                origin.spread.setdefault(name)

    def mark_reached(self, mask: int) -> None:
        """These stay; what was given is blamed only where nothing else can be."""
        made = [origin for origin in self.members(mask) if not origin.deliberate]
        for origin in made or self.members(mask):
            origin.reached = True

    def reported(self) -> Iterable[ObservedOrigin]:
        """What there is to tell of."""
        return [origin for origin in self.all if origin.reached]

    def made_nan(self) -> int:
        """The origins of NaN, also by a later operation, and of unintended infinities."""
        mask = 0
        for number, origin in enumerate(self.all):
            if origin.kind == NAN or origin.became_nan is not None:
                mask |= 1 << number
        return mask


def _holder(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory has the values: itself, or that inside a sparse or ragged one."""
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        return tensor
    return tensor.values()
