"""Records the origins of NaN and Inf, by the memory of the results, and writes their messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradscope.capture.stats import Measured, resolve
from gradscope.explain.non_finite.reasons import INF, KINDS, NAN, Reason
from gradscope.explain.shared.frames import CallSite
from gradscope.explain.shared.tracing_modes import memory_of
from gradscope.records.answers import NonFiniteOrigin


@dataclass(frozen=True, slots=True)
class BecameNaN:
    """The first operation that made a NaN from an origin's infinities."""

    op: str
    site: CallSite
    reason: str | None


@dataclass(slots=True)
class ObservedOrigin:
    """An origin of NaN and Inf: an operation, or a tensor from before the run.

    Attributes:
        kind: INF or NAN.
        group: the function call, or the node of backward, that made it.
        reason: the arithmetic in words.
        deliberate: True if intended, as the -inf of a mask; not reported alone.
        name: the parameter, buffer or input that held it.
        spread: the names that it reached, in order.
        reached: True if it reached something that persists.
        of_infinities: True for a NaN from intended infinities.
        and_then: the arithmetic by which the same function then made a NaN.
        function: for a node of backward, the function of forward.
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
        """Identity of the origin: equal for another run of the same line."""
        # One step of the optimizer is one place for all parameters.
        name = None if self.phase == "step" else self.name
        site = self.site
        return self.phase, self.op, site.file, site.line, site.module, name, self.deliberate


class ObservedOrigins:
    """All origins, oldest first; a set of origins is an int, with one bit each."""

    def __init__(self) -> None:
        self.all: list[ObservedOrigin] = []
        self._known: dict[object, int] = {}
        # A weak reference keeps the address from being given to another storage.
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, origin: ObservedOrigin) -> int:
        """Add an origin and return its bit; an equal origin of the same line returns the earlier
        bit."""
        number = self._known.setdefault(origin.key, len(self.all))
        if number == len(self.all):
            self.all.append(origin)
        return 1 << number

    def made_in(self, group: object, function: str, site: CallSite) -> int:
        """Return the bit of the origin that a function call, or that line, made in forward."""
        for number, origin in enumerate(self.all):
            same = (origin.op or "").strip("_") == function
            at = (origin.site.file, origin.site.line)
            if origin.group == group or (same and at == (site.file, site.line)):
                return 1 << number
        return 0

    def members(self, mask: int) -> Iterator[ObservedOrigin]:
        """Yield the origins of a mask, oldest first."""
        while mask:
            yield self.all[(mask & -mask).bit_length() - 1]
            mask &= mask - 1

    def of(self, tensor: torch.Tensor) -> int:
        """Return the bit mask of the origins in a tensor's memory."""
        return self._held.get(memory_of(_holder(tensor)), (None, 0))[1]

    def put(self, tensor: torch.Tensor, mask: int, *, overwritten: bool) -> None:
        """Note these origins in the tensor's memory; earlier origins stay, unless the full memory
        is overwritten."""
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
        """Return the bit mask of the origins in memory that is still in use."""
        mask = 0
        for reference, held in self._held.values():
            mask |= 0 if reference.expired() else held  # type: ignore[no-untyped-call]
        return mask

    def spread(self, mask: int, name: str) -> None:
        """Note that these origins reached the named module or parameter."""
        for origin in self.members(mask):
            if origin.name != name:
                origin.spread.setdefault(name)

    def mark_reached(self, mask: int) -> None:
        """Mark these origins as reached; an input is blamed only if there is no other origin."""
        made = [origin for origin in self.members(mask) if not origin.deliberate]
        for origin in made or self.members(mask):
            origin.reached = True

    def reported(self) -> Iterable[ObservedOrigin]:
        """Return the origins to report: those that reached something that persists."""
        return [origin for origin in self.all if origin.reached]

    def made_nan(self) -> int:
        """Return the origins of NaN, also by a later operation, and of unintended infinities."""
        mask = 0
        for number, origin in enumerate(self.all):
            if origin.kind == NAN or origin.became_nan is not None:
                mask |= 1 << number
        return mask


def _holder(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose memory has the values: itself, or the one inside a sparse or ragged
    tensor."""
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    if tensor.layout in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        return tensor
    return tensor.values()


_ADVICE = "find the operation that made its inputs so large, or 0"
#: A run's inputs have these names if there is one of each.
_ROLES = ("input", "target")


def records(
    origins: Iterable[ObservedOrigin], parameters: Collection[str]
) -> tuple[NonFiniteOrigin, ...]:
    """Return the records of origins; ``parameters`` has the names of the model's parameters."""
    listed = list(origins)
    measured: list[Measured] = [item for origin in listed for item in origin.inputs]
    done = resolve(measured)
    return tuple(
        NonFiniteOrigin(
            kind=KINDS[origin.kind],
            phase=origin.phase,
            message=_message(origin),
            op=origin.op,
            name=origin.name or origin.site.module,
            call=origin.site.call,
            location=origin.site.location,
            reason=reason(origin),
            count=origin.reason.count,
            inputs=tuple(done[id(item)] for item in origin.inputs),
            spread=compact(list(origin.spread), _home(origin), parameters),
            advice=origin.reason.advice or _ADVICE,
        )
        for origin in listed
    )


def unseen(kind: int, phase: str, what: str) -> NonFiniteOrigin:
    """Return the record of a tensor with NaN or Inf that no traced operation made."""
    return NonFiniteOrigin(
        kind=KINDS[kind],
        phase=phase,
        message=f"{what} is {_kind_text(kind)}, but no traced operation made it:"
        " check compiled code and code outside PyTorch.",
        spread=(what,),
    )


def reason(origin: ObservedOrigin) -> str:
    """Return the arithmetic, and the NaN that the same function then made."""
    text = origin.reason.counted
    if origin.and_then is None:
        return text
    return f"{text}, and {origin.and_then} is NaN"


def compact(names: list[str], module: str | None, parameters: Collection[str]) -> tuple[str, ...]:
    """Return each parameter and the outermost modules.

    Modules around the origin's module are left out.
    """
    parts = (module or "").split(".")
    around = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    modules = {name for name in names if name not in parameters} - around
    return tuple(
        name for name in names if name in parameters or (name in modules and not _in(name, modules))
    )


def _home(origin: ObservedOrigin) -> str | None:
    """Return the module that made an origin, or that owns the parameter."""
    if origin.phase == "parameter" and origin.name:
        return origin.name.rpartition(".")[0]
    return origin.site.module


def _in(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in modules)


def _kind_text(kind: int) -> str:
    return "NaN" if kind == NAN else "infinite"


def _message(origin: ObservedOrigin) -> str:
    what = "NaN" if origin.kind == NAN else "Inf"
    name = f"`{origin.name}`"
    if origin.phase == "input" and origin.op is None:
        if origin.name is None:
            used = _at(origin.site)
            text = f"a tensor made before the run has {what}: {origin.reason.text}"
            text += f"; it is first used{used}" if used else ""
        else:
            called = f"the {origin.name}" if origin.name in _ROLES else f"the input {name}"
            text = f"{called} has {what} before the model runs: {origin.reason.text}"
        return f"{text}{_then(origin)}."
    if origin.phase == "parameter":
        return f"{name} has {what} before the run: {origin.reason.text}{_then(origin)}."
    if origin.deliberate:
        text = f"`{origin.op}`{_at(origin.site)} got {origin.reason.text}, which reached"
        reached = "the loss" if "loss" in origin.spread else "a result"
        return f"{text} {reached}{_then(origin)}."
    of = "Inf" if origin.of_infinities else "finite numbers"
    text = reason(origin)
    if origin.phase == "step":
        made = f"`{origin.op}`{_at(origin.site)} made {what} from {of}"
        return f"{made}{f' in {name}' if origin.name else ''}: {text}{_then(origin)}."
    if origin.phase == "backward":
        where = _at(origin.site)
        of_what = f"of `{origin.function}`" if origin.function else "of the operation"
        back = f", the backward {of_what}{where}," if where else ""
        return f"`{origin.op}`{back} made {what} from {of}: {text}{_then(origin)}."
    return f"`{origin.op}`{_at(origin.site)} made {what} from {of}: {text}{_then(origin)}."


def _then(origin: ObservedOrigin) -> str:
    became_nan = origin.became_nan
    if became_nan is None or origin.kind != INF:
        return ""
    lines = (became_nan.site.file, became_nan.site.line)
    same = lines == (origin.site.file, origin.site.line) and lines[0] is not None
    where = " on the same line" if same else _at(became_nan.site)
    return f"; `{became_nan.op}`{where} then made NaN from it ({became_nan.reason})"


def _at(site: CallSite) -> str:
    """Return the place of an operation, with the text of the line."""
    return site.at_code + (" in the model" if site.module == "" else site.within)
