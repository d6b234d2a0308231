"""Finds the first operation that leaks, by comparing two forward passes result by result.

A result that must not differ, but does, is a candidate. It is the origin if the leak changes when
the unchanged result replaces it; most differing results have no part in the leak. The result of an
axis then names the call and the line.

The time dimension of an inner tensor is unknown. So an element may differ if any dimension of a
matching size places it among the changed positions; for scores [query, key] both dimensions count.
An element that differs without such an excuse carries a leak. Example: a softmax over all keys
changes the weights of past queries on past keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations, product
from operator import or_
from typing import TYPE_CHECKING, Any

import torch

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.explain.shared.frames import CallSite, shown, source
from gradscope.explain.shared.operations import Trait, by_function, function_name, written
from gradscope.explain.shared.tracing_modes import FunctionTracer, ModuleCalls, TracedCall
from gradscope.leaks.changes import Change, Kept, Layout, Outputs, change, spread, unequal
from gradscope.leaks.forwards import Forwards, detached
from gradscope.leaks.subject import Subject
from gradscope.nesting import find, replaced
from gradscope.records.leaks import AxisResult, SourceLine
from gradscope.records.tensors import finite_or_none

if TYPE_CHECKING:
    from gradscope.leaks.subject import Subject


def excused(shape: Sequence[int], dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """Return bool masks of the elements that may differ, one per possible time dimension.

    Args:
        shape: the tensor's shape.
        dirty: bool over the axis, the changed entries.
        slack: a dimension may be shorter than the axis by this number of entries, as after
            slicing; above 0 it may also be longer, as after padding.
    """
    fixed = torch.zeros(tuple(shape), dtype=torch.bool, device="cpu")
    readings: list[list[torch.Tensor]] = []
    length = dirty.numel()
    blocked: set[int] = set()
    for one, other in combinations(range(len(shape)), 2):
        if shape[one] * shape[other] == length and min(shape[one], shape[other]) > 1:
            # The axis in blocks: the block's number and the place in it.
            fixed |= _placed(dirty.reshape(shape[one], shape[other]), shape, one, other)
            blocked.update((one, other))
    exact = bool(blocked) or length in shape  # then a near fit is one by chance
    for dim, size in enumerate(shape):
        if dim not in blocked and (not exact or size % max(length, 1) == 0):
            ways = [_placed(way, shape, dim) for way in readings_of(size, dirty, slack)]
            if len(ways) == 1:
                fixed |= ways[0]
            elif ways:
                readings.append(ways)
    return [reduce(or_, chosen, fixed) for chosen in product(*readings[:3])]


def _placed(labels: torch.Tensor, shape: Sequence[int], *dims: int) -> torch.Tensor:
    view = [1] * len(shape)
    for dim in dims:
        view[dim] = shape[dim]
    return labels.reshape(view)


def readings_of(size: int, dirty: torch.Tensor, slack: int = 0) -> list[torch.Tensor]:
    """Return the entries of a dimension of that size that may belong to the changed positions."""
    length = dirty.numel()
    if size == length:
        return [dirty]
    if size < 2 or length < 2:
        return []
    if size % length == 0:  # several entries side by side, or the axis several times
        times = size // length
        return [dirty.repeat(times), dirty.repeat_interleave(times)]
    if length % size == 0:  # blocks
        return [dirty.reshape(size, -1).any(1)]
    if slack and size - length >= -min(slack, length // 3):
        found = torch.zeros(size, dtype=torch.bool, device="cpu")
        for offset in range(max(0, length - size) + 1):
            place = torch.arange(size, device="cpu") + offset
            inside = place < length
            found |= inside & dirty[place.clamp(0, length - 1)]
            if bool(dirty[-1]):  # beyond the end is later than all
                found |= place >= length
        return [found]
    if size > length and not slack:  # something is before it, or after it
        other = torch.zeros(size - length, dtype=torch.bool, device="cpu")
        return [torch.cat([other, dirty]), torch.cat([dirty, other])]
    return []


Tensors = Mapping[str, torch.Tensor]
Around = Callable[[], AbstractContextManager[Any]]
#: A run under observation, which gives the outputs.
Run = Callable[[Forwards, Around], Outputs]
#: Returns the base's result and the changed run's in one shape; the second is a view.
Pairing = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
#: If two runs differ in shape or order, a smaller share of the spread is rounding.
ROUNDING = 1e-5


def as_they_are(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair results as they are: both runs have the same shapes."""
    return before, now


def cropped(long: int, short: int, side: str) -> Pairing:
    """Pair results if the base has ``short`` entries along an axis, and the other ``long``, padded
    on a side."""
    start = long - short if side == "left" else 0

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.dim() == before.dim():
            for dim in range(now.dim()):
                if (now.size(dim), before.size(dim)) == (long, short):
                    now = now.narrow(dim, start, short)
        return before, now

    return pair


def last_of(length: int) -> Pairing:
    """Pair results if the base has ``length`` entries or more along an axis, and the other the last
    of them."""

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.dim() == before.dim():
            for dim in range(now.dim()):
                own, full = now.size(dim), before.size(dim)
                if own < full and full >= length:
                    before = before.narrow(dim, full - own, own)
        return before, now

    return pair


def moved(places: torch.Tensor) -> Pairing:
    """Pair results if the other has the base's entries along an axis in this order, or no order."""

    def pair(before: torch.Tensor, now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if now.shape != before.shape:
            return before, now
        best, distance = before, _distance(before, now)
        for dim in range(now.dim()):
            if now.size(dim) == places.numel():
                other = before.index_select(dim, places.to(before.device))
                if (own := _distance(other, now)) < distance:
                    best, distance = other, own
        return best, now

    return pair


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    if not one.numel() or one.dtype != other.dtype:
        return 0.0
    distance = (one.to(torch.float64) - other.detach().to(torch.float64)).abs()
    return float(distance.nan_to_num(0.0).max())


@dataclass(frozen=True, slots=True)
class Trial:
    """Two small runs that show the leak.

    Attributes:
        base, changed: the batches, or functions that run them.
        layout: the layout of their outputs.
        kept: the positions that must not change.
        dirty: bool over the changed axis, the changed entries; empty: nothing may differ.
        slack: as for ``excused``.
        pairing: makes two results comparable.
        exact: True if equal means equal bits; otherwise rounding is ignored.
        restores: True if the unchanged result, put in its place, must undo the leak; otherwise
            it must change it.
        beside: a batch in which everything visible is changed: a result that does not differ in
            it has no part in the prediction.
        proves: True if the outputs show the leak, so that a candidate can be tested.
        passes: functions that are not candidates.
    """

    base: Tensors | Run
    changed: Tensors | Run
    layout: Layout
    kept: Kept
    dirty: torch.Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.bool, device="cpu")
    )
    slack: int = 0
    pairing: Pairing = as_they_are
    exact: bool = True
    restores: bool = False
    beside: Tensors | None = None
    proves: bool = True
    passes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        subject: Subject,
        base: Tensors,
        changed: Tensors,
        kept: Kept,
        dirty: torch.Tensor,
        count: int,
        slack: int = 0,
        passes: frozenset[str] = frozenset(),
    ) -> Trial:
        """Return a trial with the outputs' layout for so many rows."""
        layout = Layout.of(subject.meaning, count)
        return cls(base, changed, layout, kept, dirty, slack, passes=passes)

    def change(self, one: Outputs, other: Outputs) -> Change | None:
        """Return the forbidden change between two runs' outputs."""
        if not self.exact:
            paired = {
                path: self.pairing(t, other[path]) for path, t in one.items() if path in other
            }
            one = {path: pair[0] for path, pair in paired.items()}
            other = {path: pair[1] for path, pair in paired.items()}
        return change(one, other, self.layout, self.kept)


#: Number of candidates to try.
TRIES = 16
#: A patched result has to change the leak by such a share: the rest is rounding.
MATTERS = 1e-3


@dataclass(frozen=True, slots=True)
class Crossing:
    """The first call that leaks, and its line.

    Attributes:
        layer, call: the innermost module call.
        operation: the operation's name. file, line, text: the nearest line of the user's code, as
            messages show it.
    """

    layer: str
    call: int
    operation: str
    file: str | None = None
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    """Key of a result: the function's result by number, in a module's call."""

    module: str
    call: int
    function: str
    number: int


@dataclass
class _Log:
    """Traces every function of a forward pass, and every module's result.

    Attributes:
        known: the results of the base; None: this pass is the base, and stores them.
        candidates: results that must be equal but differ.
        weights: for candidates that are products with attention weights, the softmax of these
            weights, which decides the positions that are read.
        patch: the result that is replaced by the base's wherever it must not differ.
    """

    trial: Trial
    calls: ModuleCalls
    known: Mapping[_Key, list[torch.Tensor]] | None = None
    patch: _Key | None = None
    kept: dict[_Key, list[torch.Tensor]] = field(default_factory=dict)
    candidates: dict[_Key, CallSite] = field(default_factory=dict)
    weights: dict[_Key, tuple[_Key, CallSite]] = field(default_factory=dict)
    _counts: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    _busy: bool = False
    _soft: dict[int, tuple[torch.Tensor, _Key, CallSite]] = field(default_factory=dict)

    def listen(self, call: TracedCall) -> Any:
        """Run a function, and check its result and the tensors that it wrote to."""
        result = call.run()
        if self._busy:
            return result
        name = function_name(call.function)
        written_to = _written(name, call)
        made = result if written_to is None else written_to
        if not any(True for _ in find(made, torch.Tensor)):
            return result
        innermost = self.calls.innermost()
        module, number = ("", 0) if innermost is None else (innermost.name, innermost.number)
        new = self._seen(module, number, name, made, in_place=written_to is not None)
        if self.known is not None:
            key = _Key(module, number, name, self._counts[module, number, name])
            self._follow(key, call, new)
        return result if written_to is not None else new

    def _follow(self, key: _Key, call: TracedCall, made: Any) -> None:
        """Remember a softmax's result, as far as it is only passed on."""
        operation = by_function(key.function)
        given = [self._soft[id(t)] for _, t in find(call.args, torch.Tensor) if id(t) in self._soft]
        if operation.has(Trait.SOFTMAX) and isinstance(made, torch.Tensor):
            self._soft[id(made)] = made, key, self.calls.site()
        elif given and key.function in _CARRY and isinstance(made, torch.Tensor):
            self._soft[id(made)] = made, *given[0][1:]
        elif given and key in self.candidates and operation.name in _PRODUCTS:
            self.weights[key] = given[0][1:]

    def returned(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        """Note a module's output: the result of a function that is not traced, such as a scripted
        one, appears only here.
        """
        innermost = self.calls.innermost(module)
        new = output
        if innermost is not None:
            name = f"{type(module).__name__}.forward"
            new = self._seen(innermost.name, innermost.number, name, output, in_place=False)
        self.calls.leave(module, args, kwargs, output)
        return new if new is not output else None

    def _seen(self, module: str, call: int, name: str, made: Any, *, in_place: bool) -> Any:
        self._busy = True
        try:
            return self._compared(module, call, name, made, in_place=in_place)
        finally:
            self._busy = False

    def _compared(self, module: str, call: int, name: str, made: Any, *, in_place: bool) -> Any:
        self._counts[module, call, name] += 1
        key = _Key(module, call, name, self._counts[module, call, name])
        tensors = [t for _, t in find(made, torch.Tensor)]
        if self.known is None:
            self.kept[key] = [t.detach().clone() for t in tensors]
            return made
        before = self.known.get(key)
        if before is None or len(before) != len(tensors):
            return made
        if self.patch is not None:
            return self._patched(key, made, tensors, before, in_place=in_place)
        if any(bool(self._crossed(a, b).any()) for a, b in zip(before, tensors, strict=True)):
            self.candidates.setdefault(key, self.calls.site())
        return made

    def _crossed(self, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        """Return a bool mask of the elements that must be equal but differ."""
        none = torch.zeros((), dtype=torch.bool, device="cpu")
        if before.layout != torch.strided or now.layout != torch.strided:
            return none
        before, now = self.trial.pairing(before, now.detach())
        if before.shape != now.shape or before.dtype != now.dtype:
            return none
        differs = unequal(before, now)
        if not self.trial.exact and now.is_floating_point():
            differs &= (before - now).abs() > ROUNDING * (spread(before) + before.abs())
        if not bool(differs.any()):
            return none
        allowed = excused(tuple(now.shape), self.trial.dirty, self.trial.slack)
        left = [differs & ~one.to(differs.device) for one in allowed]
        return min(left, key=lambda one: int(one.sum()))

    def _patched(
        self,
        key: _Key,
        made: Any,
        tensors: list[torch.Tensor],
        before: list[torch.Tensor],
        *,
        in_place: bool,
    ) -> Any:
        if key != self.patch:
            return made
        new: dict[int, torch.Tensor] = {}
        for old, now in zip(before, tensors, strict=True):
            crossed = self._crossed(old, now)
            if not bool(crossed.any()):
                continue
            with torch.no_grad():
                target = now.detach() if in_place else now.detach().clone()
                right, part = self.trial.pairing(old, target)
                part.copy_(torch.where(crossed, right, part))
            new[id(now)] = target
        if in_place or not new:
            return made
        return replaced(made, torch.Tensor, lambda t: new.get(id(t), t))


def first_call(forwards: Forwards, trial: Trial) -> Crossing | None:
    """Return the first operation whose result carries the leak; None if no single one does."""
    base, clean = _logged(forwards, trial, trial.base)
    log, leaking = _logged(forwards, trial, trial.changed, known=base.kept)
    found = trial.change(clean, leaking)
    if found is None and trial.proves:
        return None  # it does not show between these two
    candidates = {k: s for k, s in log.candidates.items() if k.function not in trial.passes}
    if trial.beside is not None:
        mixed = replace(trial, dirty=torch.zeros(0, dtype=torch.bool, device="cpu"))
        other, _ = _logged(forwards, mixed, trial.beside, known=base.kept)
        candidates = {key: site for key, site in candidates.items() if key in other.candidates}
    moving = None
    for key, site in list(candidates.items())[:TRIES]:
        if found is None:
            return _crossing(key, site)
        _, patched = _logged(forwards, trial, trial.changed, known=base.kept, patch=key)
        moves = trial.change(leaking, patched)
        if moves is None or moves.effect <= MATTERS * found.effect:
            continue
        left = trial.change(clean, patched) if trial.restores else None
        if left is None or left.effect < found.effect / 2:
            return _crossing(*log.weights.get(key, (key, site)))
        moving = moving or _crossing(key, site)
    return moving


def _logged(
    forwards: Forwards,
    trial: Trial,
    run: Tensors | Run,
    known: Mapping[_Key, list[torch.Tensor]] | None = None,
    patch: _Key | None = None,
) -> tuple[_Log, Outputs]:
    """Run a forward pass under the log; return both."""
    model = forwards.workload.model
    calls = ModuleCalls(model, _logged.__code__)
    log = _Log(trial, calls, known, patch)

    def around() -> AbstractContextManager[Any]:
        kept = ExitStack()
        kept.enter_context(hooked(hookable_modules(model), calls.enter, log.returned))
        kept.enter_context(FunctionTracer(log.listen))
        return kept

    if isinstance(run, Mapping):
        return log, forwards.run(run, lambda out, step: detached(out), around)
    return log, run(forwards, around)


def _written(name: str, call: TracedCall) -> Any:
    """Return the tensor that a function wrote to in place, if that is not its result."""
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        return call.args[0] if call.args else None
    if written(name).startswith("i") and name in _IN_PLACE:
        return call.args[0]
    return call.kwargs.get("out")


#: Functions after which attention weights are still attention weights, and those that use them.
_CARRY = {"dropout", "to", "type_as", "contiguous", "float", "half", "nan_to_num", "expand"}
_PRODUCTS = {"matmul", "bmm", "einsum"}
_IN_PLACE = {
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__"),
    *("__iand__", "__ior__", "__ixor__", "__imod__"),
}


def _crossing(key: _Key, site: CallSite) -> Crossing:
    operation = by_function(key.function)
    name = key.function.removesuffix(".forward") if "." in key.function else operation.name
    file = None if site.file is None else shown(site.file)
    text = None
    if site.file is not None and site.line is not None:
        text = source(site.file, site.line)
    return Crossing(key.module, key.call, name, file, site.line, text)


#: A gradient below this share of the largest is rounding of the backward pass.
_ROUNDING_BACK = 1e-5


def not_judged(axis: str, why: str, advice: str | None = None) -> AxisResult:
    """Return the result of an axis that cannot be judged, with the reason."""
    return AxisResult(axis, "not-judged", why, advice=advice)


def clean(axis: str, message: str, gradient: bool | None = None) -> AxisResult:
    """Return the result of an axis without a leak."""
    return AxisResult(axis, "clean", message, finite=False, gradient=gradient)


def doubtful(axis: str, change: Change) -> AxisResult:
    """Return the result of a change that may be rounding."""
    return AxisResult(
        axis, "not-judged", change.doubt or "", effect=finite_or_none(change.effect), finite=True
    )


def leak(
    subject: Subject,
    axis: str,
    words: str,
    change: Change,
    trial: Trial | None,
    *,
    reach: str | None = None,
    gradient: bool | None = None,
    advice: str | None = None,
) -> AxisResult:
    """Return the result of a leak, with its first call.

    ``words`` complete a sentence that begins with the operation.
    """
    crossing = None if trial is None else first_call(subject.forwards, trial)
    message, source = phrase(crossing, words), None
    if crossing is not None and crossing.file is not None and crossing.line is not None:
        source = SourceLine(crossing.file, crossing.line, crossing.text)
    if reach:
        message += f"; reaches {reach}"
    if gradient is False:
        message += "; forward passes see it and the gradient does not (argmax, rounding, detach)"
    return AxisResult(
        axis,
        "leaks",
        message,
        effect=finite_or_none(change.effect),
        reach=reach,
        layer=None if crossing is None else crossing.layer,
        call=None if crossing is None else crossing.call,
        operation=None if crossing is None else crossing.operation,
        source=source,
        advice=advice,
        finite=True,
        gradient=gradient,
        severity="error",
    )


def phrase(crossing: Crossing | None, words: str) -> str:
    """Return the operation, its place, and its effect, in words."""
    if crossing is None:
        return f"{words} (no single operation lets it through)"
    at = f" at {crossing.file}:{crossing.line}" if crossing.file else ""
    return f"`{crossing.operation}`{at} {words}"


def nonzero(values: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the gradients in a row that exceed rounding."""
    largest = values.amax(dim=-1, keepdim=True)
    return (values > _ROUNDING_BACK * largest) & (values > 0)
