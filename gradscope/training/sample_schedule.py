"""Schedule of the sampled steps, and their cost."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

#: Number of the latest steps of a kind for the medians.
_LATEST = 64
#: Seconds that the fixed samples may take together, however short the run.
FREE_SECONDS = 3.0


def is_fixed(step: int) -> bool:
    """Return True for steps 1, 2, 3, 5, 8, 13, …: the Fibonacci numbers.

    There are about ``5 log10(steps)`` such steps, most of them early, when training changes most.
    """
    return any(math.isqrt(n) ** 2 == n for n in (5 * step * step + 4, 5 * step * step - 4))


def next_fixed(step: int) -> int:
    """Return the first fixed step after this one."""
    before, last = 1, 2
    while last <= step:
        before, last = last, before + last
    return last if step else 1


def seconds_in_queue() -> float:
    """Return the seconds that this thread has waited for a processor so far, by Linux's scheduler;
    0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(slots=True)
class Schedule:
    """Decides before each step whether to sample it.

    The first steps and the fixed ones are sampled while all samples together cost less than a few
    seconds or the budget. Time in which the sampled steps wait for a processor is left out. So a
    short run samples the same steps, however busy the machine is.
    Another step is sampled if the cost so far, plus the expected cost of one more sample, stays
    within the budget's share of the time since the first step. The metrics of all steps may use
    three quarters of that share. With several processes, each samples the multiples of a power of
    two that half of the budget pays for; metrics have the other half. So all sample the same steps
    without communication; faster ones may sample more.

    Attributes:
        first: the number of first steps that are always sampled.
        every: the fixed N of "every Nth step", None with a budget.
        budget: the share of the time that samples and metrics may take.
        processes: the number of processes that train together.
    """

    first: int = 3
    every: int | None = None
    budget: float = 0.02
    processes: int = 1
    number: int = 0
    samples: float = 0.0  # seconds that were spent on them
    metrics: float = 0.0  # and on the steps that were not sampled
    elapsed: float = 0.0
    latest: int | None = None  # the steps between the last two samples
    _start: float = 0.0  # of ``elapsed`` the first step, with all that came before it
    _last: int = 0
    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _sampled: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _own: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    _unpriced: int = 0  # samples that came before it was known what a plain step takes
    _seconds: float = 0.0  # of the sampled steps, and the part in which they waited for a processor
    _queued: float = 0.0
    _cost: float = 0.0  # of one sample, as it was known last: medians take longer than a small step
    _stride: int = 1  # of several processes

    def samples_next(self) -> bool:
        """True if the next step is sampled."""
        upcoming = self.number + 1
        if upcoming <= self.first:
            return True
        if self.every is not None:
            return upcoming % self.every == 0
        paid = self.budget * (self.elapsed - self._start)
        spent = self.samples + self._unpriced * self._cost
        if is_fixed(upcoming) and (
            spent + self._cost <= paid or (spent + self._cost) * self._running <= FREE_SECONDS
        ):
            return True
        if not self._plain:  # what a plain step takes is not known yet
            return False
        if self.processes > 1:
            return upcoming % self._stride == 0
        return spent + self._cost <= paid - min(self.metrics, paid * self.metrics_share)

    @property
    def metrics_share(self) -> float:
        """Largest share of the budget for metrics."""
        return 1 / 2 if self.processes > 1 else 3 / 4

    @property
    def _running(self) -> float:
        """Share of the sampled steps' time in which they did not wait for a processor."""
        return 1 - self._queued / self._seconds if self._seconds else 1.0

    def ended(self, seconds: float, *, sampled: bool, own: float, queued: float = 0.0) -> None:
        """Note the end of a step.

        Args:
            seconds: the time since the end of the step before.
            sampled: True if it was sampled.
            own: gradscope's part of these seconds, as far as known.
            queued: the part in which a sampled step waited for a processor.
        """
        self.number += 1
        self.elapsed += seconds
        if self.number == 1:
            self._start = seconds
        if sampled:
            # The first step warms up caches and allocators: it is slow in any case.
            if self.number > 1:
                self._sampled.append(seconds)
                self._own.append(own)
                self._seconds += seconds
                self._queued += min(queued, seconds)
            if self._last:
                self.latest = self.number - self._last
            self._last = self.number
            self._reckon()
            if self._plain:
                self.samples += min(self._cost, seconds)
            else:
                self._unpriced += 1
        else:
            self._plain.append(max(0.0, seconds - own))
            self.metrics += own
            if len(self._plain) == 1 and self._unpriced:
                self._reckon()
                self.samples, self._unpriced = self.samples + self._unpriced * self._cost, 0
            elif self.number % _LATEST == 0:
                self._reckon()

    def _reckon(self) -> None:
        self._cost = self._cost_of_one()
        plain = self.plain
        if plain and self.processes > 1:
            steps = self._cost / (self.budget / 2 * plain)
            self._stride = 1 << max(0, math.ceil(math.log2(steps))) if steps > 1 else 1

    def _cost_of_one(self) -> float:
        """Expected cost of one sample in seconds: the time of such a step beyond a plain one."""
        own = statistics.median(self._own) if self._own else 0.0
        if not self._plain or not self._sampled:
            return own
        return max(own, statistics.median(self._sampled) - statistics.median(self._plain))

    @property
    def plain(self) -> float | None:
        """The median seconds of a step that was not sampled."""
        return statistics.median(self._plain) if self._plain else None

    @property
    def sampled(self) -> float | None:
        """The median seconds of a step that was sampled."""
        return statistics.median(self._sampled) if self._sampled else None

    @property
    def cost_seconds(self) -> float | None:
        """The seconds that samples and metrics took; None if no unsampled step shows the plain time
        of a step.
        """
        return None if not self.elapsed or self._unpriced else self.samples + self.metrics

    @property
    def cost(self) -> float | None:
        """The cost as a share of the steps' time."""
        seconds = self.cost_seconds
        return None if seconds is None else seconds / self.elapsed
