"""Records the order of events between steps; each kind of order is stored once."""

from __future__ import annotations

import sys

from gradscope.explain.shared.frames import nearest
from gradscope.records.loop import LoopEvent, Round
from gradscope.training.loop.script_lines import script_place

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
        """The kinds of rounds so far."""
        return tuple(Round(key, *numbers) for key, numbers in self._kinds.items())
