"""Events → lines: equal ones folded, in the order of their first step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradscope.records.training import TrainingEvent
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, plural
from gradscope.typeset.text import plain

#: What is no news but trouble; all else has no tone.
_TONES = {
    "failed": "bad",
    "non-finite": "bad",
    "unused-parameters": "bad",
    "skipped-step": "warn",
}


#: A page has so many lines of events; the table of events has all.
MOST = 12


def lines(
    events: Sequence[TrainingEvent], *, full: bool = True, option: str = "--table events"
) -> Iterator[Line]:
    """A line for each event, one for those that differ in figures alone; a page has the first.

    ``option`` is what shows all.
    """
    lines = list(_lines(events))
    if full or len(lines) <= MOST:
        yield from lines
        return
    yield from lines[:MOST]
    yield Line(f"… {count(len(lines) - MOST)} more: `{option}` shows all")


def _lines(events: Sequence[TrainingEvent]) -> Iterator[Line]:
    groups: dict[tuple[str, str], list[TrainingEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, re.sub(r"\d+", "#", event.message)), []).append(event)
    for alike in groups.values():
        first, last = alike[0], alike[-1]
        kind = plain(first.kind)
        text = plain(first.message) or kind
        if len(alike) > 1:
            text += f" ({plural(len(alike), 'time')}, the last at step {count(last.step)})"
        lead = f"step {count(first.step)}" + (f", {kind}:" if text != kind else ":")
        yield Line(text, lead, _TONES.get(first.kind, ""))
