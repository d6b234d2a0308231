"""Finds the first operation that leaks, by comparing two forward passes result by result.

A result that must not differ, but does, is a candidate. It is the origin if the leak changes when
the unchanged result replaces it; most differing results have no part in the leak. The result of an
axis then names the call and the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.explain.shared.frames import CallSite, shown, source
from gradscope.explain.shared.operations import Trait, by_function, function_name, written
from gradscope.explain.shared.tracing_modes import FunctionTracer, ModuleCalls, TracedCall
from gradscope.leaks.changes import Change, Outputs, spread, unequal
from gradscope.leaks.forwards import Forwards, detached
from gradscope.leaks.subject import Subject
from gradscope.leaks.trials import ROUNDING, Run, Tensors, Trial, excused
from gradscope.nesting import find, replaced
from gradscope.records.leaks import AxisResult, SourceLine
from gradscope.records.tensors import finite_or_none

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
        none = torch.zeros((), dtype=torch.bool)
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
    found = trial.gap(clean, leaking)
    if found is None and trial.proves:
        return None  # it does not show between these two
    candidates = {k: s for k, s in log.candidates.items() if k.function not in trial.passes}
    if trial.beside is not None:
        mixed = replace(trial, dirty=torch.zeros(0, dtype=torch.bool))
        other, _ = _logged(forwards, mixed, trial.beside, known=base.kept)
        candidates = {key: site for key, site in candidates.items() if key in other.candidates}
    moving = None
    for key, site in list(candidates.items())[:TRIES]:
        if found is None:
            return _crossing(key, site)
        _, patched = _logged(forwards, trial, trial.changed, known=base.kept, patch=key)
        moves = trial.gap(leaking, patched)
        if moves is None or moves.effect <= MATTERS * found.effect:
            continue
        left = trial.gap(clean, patched) if trial.restores else None
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
