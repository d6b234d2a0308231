"""The learning-rate schedulers that were made, and how many steps each has made."""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradscope.explain.shared.frames import shown
from gradscope.records.loop import LoopScheduler
from gradscope.training.discovery import variable_name
from gradscope.training.loop.places import ScriptLine, script_line


class _Seen:
    """One of them: where it was made, and how far it had come when it was looked at last."""

    __slots__ = ("epoch", "made", "name", "steps")

    def __init__(self, made: ScriptLine | None, epoch: int) -> None:
        self.made, self.epoch = made, epoch
        self.steps = 0
        self.name: str | None = None


class Schedulers:
    """Counts their steps by ``last_epoch``: to stand around ``step`` would change the line that its
    warnings name."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[LRScheduler, _Seen] = weakref.WeakKeyDictionary()

    def made(self, scheduler: LRScheduler) -> None:
        """One is under construction."""
        if scheduler not in self._seen:
            self._seen[scheduler] = _Seen(script_line(), -1)

    def stepped(self) -> list[str]:
        """The names of those that made a step since this was asked last."""
        found = []
        for scheduler, seen in self._seen.items():
            epoch = getattr(scheduler, "last_epoch", 0)
            if seen.epoch < 0:  # its constructor makes the first
                seen.epoch = 0
            if epoch != seen.epoch:
                seen.steps += 1
                seen.epoch = epoch
                seen.name = seen.name or variable_name(scheduler) or type(scheduler).__name__
                found.append(seen.name)
        return found

    def records(self, name_of: Callable[[Optimizer], str]) -> tuple[LoopScheduler, ...]:
        """What is known of each."""
        return tuple(
            LoopScheduler(
                name=name,
                kind=type(scheduler).__name__,
                location=_call(name, seen.made) or (str(seen.made) if seen.made else None),
                optimizer=name_of(scheduler.optimizer),
                steps=seen.steps,
                settings=_settings(scheduler),
            )
            for scheduler, seen in list(self._seen.items())
            if isinstance(getattr(scheduler, "optimizer", None), Optimizer)
            for name in [seen.name or variable_name(scheduler) or type(scheduler).__name__]
        )


def _settings(scheduler: LRScheduler) -> dict[str, float]:
    found = vars(scheduler)
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not key.startswith("_") and key != "last_epoch"
    }


def _call(name: str, made: ScriptLine | None) -> str | None:
    """The line of the script, in the file that made it, that has it make a step."""
    if made is None:
        return None
    pattern = re.compile(rf"\b{re.escape(name)}\s*\.\s*step\s*\(")
    for number, line in enumerate(linecache.getlines(made.file), 1):
        if pattern.search(line):
            return f"{shown(made.file)}:{number}"
    return None
