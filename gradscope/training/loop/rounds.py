"""Records the order of events between steps, each kind of order once, and the learning-rate
schedulers."""

from __future__ import annotations

import ast
import functools
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau

from gradscope.explain.shared.frames import last_name, nearest, shown, tree_of
from gradscope.records.loop import LoopEvent, LoopScheduler, Round
from gradscope.records.loop_figures import LoopFact
from gradscope.training.discovery import variable_name
from gradscope.training.loop.script_lines import (
    ScriptLine,
    call_of,
    script_line,
    script_place,
    set_elsewhere,
)

#: Number of events kept in a round, and of kinds of rounds: a regular loop has few of either.
_LONGEST, _MOST = 64, 256
#: Events that are also separated by the line of the script: it may clear gradients at several.
_PLACED = frozenset({"zero", "clip", "backward", "epoch"})


class Rounds:
    """Receives events in order. An event equal to an earlier one costs one dictionary access."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], LoopEvent] = {}
        self._events: list[LoopEvent] = []
        self._kinds: dict[tuple[LoopEvent, ...], list[int]] = {}  # count, first, last

    def add(self, kind: str, of: str = "", facts: frozenset[str] = frozenset()) -> LoopEvent:
        """Add an event."""
        frame = nearest(sys._getframe(1)) if kind in _PLACED else None
        key = kind, of, facts, frame and (frame.f_code, frame.f_lineno)
        event = self._known.get(key)
        if event is None:
            place = script_place()
            event = self._known[key] = LoopEvent(kind, of, facts, place)
        events = self._events
        if not events or (events[-1] is not event and len(events) < _LONGEST):
            events.append(event)
        return event

    def end(self, step: int, of: str, facts: frozenset[str]) -> None:
        """End the round with the step of this number."""
        events = self._events
        if len(events) == _LONGEST:
            del events[-1]
        self.add("step", of, facts)
        key = tuple(events)
        events.clear()
        known = self._kinds.get(key)
        if known is None and len(self._kinds) >= _MOST:
            key = key[-1:]  # the step alone
            known = self._kinds.get(key)
        if known is None:
            self._kinds[key] = [1, step, step]
        else:
            known[0] += 1
            known[2] = step

    @property
    def rest(self) -> tuple[LoopEvent, ...]:
        """Return the events since the last step."""
        return tuple(self._events)

    def all(self) -> tuple[Round, ...]:
        """Return the kinds of rounds so far."""
        return tuple(Round(key, *numbers) for key, numbers in self._kinds.items())


#: Arguments with the length of a warm-up, as ``warmup_steps`` and ``num_warmup_steps``.
_WARMUP = re.compile(r"(num_|lr_)?warmup_(steps|iters|epochs|ratio)$")


class _Seen:
    """One scheduler: the place that made it, and its number of steps at the last sample."""

    __slots__ = ("epoch", "made", "name", "record", "ref", "reverse", "steps")

    def __init__(self, scheduler: LRScheduler, made: ScriptLine | None) -> None:
        self.ref, self.made, self.epoch = weakref.ref(scheduler), made, -1
        self.steps = 0
        self.name: str | None = None
        #: Its last record: a scheduler that a function made no longer exists after the function's
        #: end.
        self.record: LoopScheduler | None = None
        self.reverse: LoopFact | None = None


class Schedulers:
    """Counts their steps by ``last_epoch``, because a wrapper of ``step`` would change the line in
    its warnings."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def made(self, scheduler: LRScheduler) -> None:
        """Note a new scheduler."""
        if not any(seen.ref() is scheduler for seen in self._seen):
            self._seen.append(_Seen(scheduler, script_line()))

    def stepped(self) -> list[str]:
        """Return the names of the schedulers that made a step since the last request."""
        found = []
        for seen in self._seen:
            scheduler = seen.ref()
            if scheduler is None:
                continue
            epoch = getattr(scheduler, "last_epoch", 0)
            if seen.epoch < 0:  # its constructor makes the first
                seen.epoch = 0
            if epoch != seen.epoch:
                seen.steps += 1
                seen.epoch = epoch
                seen.name = seen.name or variable_name(scheduler) or type(scheduler).__name__
                found.append(seen.name)
        return found

    def facts(self) -> Iterator[LoopFact]:
        """Yield the schedulers that look for a plateau in the wrong direction, by the name of the
        figure that the script gives them."""
        for seen in self._seen:
            scheduler = seen.ref()
            if isinstance(scheduler, ReduceLROnPlateau) and seen.made is not None:
                seen.reverse = _reverse(scheduler, seen.name or "", seen.made)
            if seen.reverse is not None:
                yield seen.reverse

    def records(self, name_of: Callable[[Optimizer], str]) -> tuple[LoopScheduler, ...]:
        """Return the records of all schedulers."""
        for seen in self._seen:
            scheduler = seen.ref()
            if scheduler is None:
                if seen.record is not None:
                    seen.record = replace(seen.record, steps=seen.steps)
            elif isinstance(getattr(scheduler, "optimizer", None), Optimizer):
                seen.name = seen.name or variable_name(scheduler)
                name = seen.name or type(scheduler).__name__
                made = str(seen.made) if seen.made else None
                seen.record = LoopScheduler(
                    name=name,
                    kind=type(scheduler).__name__,
                    location=(call_of(name, "step", seen.made.file) if seen.made else None)
                    or set_elsewhere(name, seen.made)  # where a function of the script made it
                    or made,
                    made=made,
                    warmup=_warmup(seen.made.file) if seen.made else None,
                    target=_target(inner(scheduler.optimizer)),
                    optimizer=name_of(inner(scheduler.optimizer)),
                    steps=seen.steps,
                    settings=_settings(scheduler),
                    milestones=_milestones(scheduler),
                )
        return tuple(seen.record for seen in self._seen if seen.record is not None)


#: Words in the names of figures that rise as a model learns.
_RISES = re.compile(
    r"(^|[._])(acc|accuracy|auc|auroc|f1|iou|miou|recall|precision|bleu|r2|reward)(s|$|[._\d])"
)
_FALLS = re.compile(r"(^|[._])(loss|err|error|mse|rmse|mae|perplexity|ppl)(es|s)?($|[._])")
_NEGATED = re.compile(r"(^|[._])(neg|negative|minus|inv|inverse|one_minus)($|[._])")


def _reverse(scheduler: ReduceLROnPlateau, name: str, made: ScriptLine) -> LoopFact | None:
    """Return a fact if a scheduler waits for a fall of a figure that should rise, or the other way
    round."""
    given, line = _plateau_argument(made.file, name)
    falls, rises = bool(_FALLS.search(given)), bool(_RISES.search(given))
    if falls == rises or _NEGATED.search(given) or rises != (scheduler.mode == "min"):
        return None
    return LoopFact(
        "reverse-plateau", name, count=scheduler.last_epoch, words=(given, scheduler.mode),
        location=f"{shown(made.file)}:{line}",
    )  # fmt: skip


@functools.cache
def _plateau_argument(file: str, name: str) -> tuple[str, int]:
    """Return the name of the figure in ``scheduler.step(figure)``, and the line; "" and 0 if it
    is not a plain name, or lines differ."""
    tree = tree_of(file)
    found = dict[str, int]()
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Call(
                func=ast.Attribute(value=of, attr="step"),
                args=[ast.Name() | ast.Attribute() as figure],
            ) if last_name(of) == name:
                found.setdefault(ast.unparse(figure).lower(), node.lineno)
            case ast.Call(
                func=ast.Attribute(value=of, attr="step"),
                args=[ast.Subscript(slice=ast.Constant(value=str(key)))],
            ) if last_name(of) == name:
                found.setdefault(key.lower(), node.lineno)
            case ast.Call(func=ast.Attribute(value=of, attr="step")) if last_name(of) == name:
                found.setdefault("", node.lineno)  # another figure
    return next(iter(found.items())) if len(found) == 1 else ("", 0)


@functools.cache
def _warmup(file: str) -> str | None:
    """Return the line of the only argument in a file that sets the length of a warm-up to a
    number."""
    tree = tree_of(file)
    found = {
        one.value.lineno
        for one in (ast.walk(tree) if tree is not None else ())
        if isinstance(one, ast.keyword) and one.arg and _WARMUP.match(one.arg)
        if isinstance(one.value, ast.Constant | ast.Name) and not _is_nothing(one.value)
    }
    return f"{shown(file)}:{found.pop()}" if len(found) == 1 else None


def _is_nothing(value: ast.Constant | ast.Name) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def inner(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside the wrappers of a library or of the script, as in SAM, whose only
    attribute that is an optimizer makes the steps."""
    seen = [optimizer]
    while len(held := [one for one in vars(seen[-1]).values() if isinstance(one, Optimizer)]) == 1:
        if any(one is held[0] for one in seen):
            break
        seen += held
    return seen[-1]


def _target(optimizer: Optimizer) -> float | None:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    rate = group.get("max_lr", group.get("initial_lr"))
    return float(rate) if isinstance(rate, int | float) else None


def _milestones(scheduler: LRScheduler) -> tuple[int, ...]:
    if type(scheduler) is not MultiStepLR:
        return ()
    return tuple(sorted(one for one in scheduler.milestones if type(one) is int))


def _settings(scheduler: LRScheduler) -> dict[str, float]:
    found = vars(scheduler)
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not key.startswith("_") and key != "last_epoch"
    }
