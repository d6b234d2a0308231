"""Schedules step metrics, and the steps in which all gradients are read."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

from gradscope.records.tensors import VALUES_EVERY
from gradscope.records.training import TrainingStep
from gradscope.training.current_step import CurrentStep
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.sample_schedule import Schedule

#: The largest shares of the budget for the records of steps, and for reading updates.
_RECORDS, _UPDATES = 1 / 4, 1 / 4
#: Number of measurements of the cost of one, and the most steps from one to the next.
MEASURED, _RAREST = 16, 64
#: The fractional parts of its multiples are spread evenly (Weyl's equidistribution
#: theorem), also over every nth step: optimizers that take turns all get their share.
_GOLDEN = (math.sqrt(5) - 1) / 2


class Frequency:
    """Frequency of an action: every step, or one step in N, so that it stays within a share of the
    budget.

    If there are two actions, the rarer one runs only in steps with the other.

    Args:
        schedule: knows the budget, and the time of a plain step.
        share: the action's share of the budget.
        more: a share of the median time, added to the measured time.
    """

    def __init__(self, schedule: Schedule, share: float, more: float = 0.0) -> None:
        #: N, on average.
        self.every = 1
        self.share = share
        #: The share of the budget that it takes at this frequency.
        self.used = 0.0
        self._schedule, self._more = schedule, more
        self._seconds: deque[float] = deque(maxlen=MEASURED)

    def includes(self, step: int) -> bool:
        """Return True if the action runs in the next step, after this many steps."""
        return self.every == 1 or step * _GOLDEN % 1.0 < 1 / self.every

    def took(self, seconds: float) -> None:
        """Note the duration of one action."""
        self._seconds.append(seconds)

    def renew(self) -> None:
        """Set the frequency by the latest durations: called every ``MEASURED`` steps."""
        if self._schedule.every is not None or not self._seconds:
            return
        plain = self._schedule.plain
        if plain:
            median = statistics.median(self._seconds) * (1 + self._more)
            cost = median / plain / self._schedule.budget
            self.every = min(_RAREST, max(1, math.ceil(cost / self.share)))
            self.used = cost / self.every


class MetricsSchedule:
    """Metrics get three quarters of the budget: to record a step, and to read all gradients and the
    update.

    The records get at most a quarter, the updates another; the gradients get the rest.

    Attributes:
        records: the frequency of the records of unremarkable steps.
        readings: the frequency of the readings of all gradients; only in recorded steps.
        checked: True if every step is checked for NaN and Inf.
        updates: the frequency of the readings of the update from the optimizer's state; only in
            recorded steps.
        reads: True if all gradients are read in the current step.
        reads_update: True if the update is read in the current step.
        unrecorded: makes the record of the last step, if it was not recorded.
    """

    def __init__(self, schedule: Schedule, current: CurrentStep, *, checked: bool) -> None:
        self.records = Frequency(schedule, _RECORDS)
        # Weights are read in some of the steps in which gradients are.
        self.readings = Frequency(schedule, _RECORDS, more=1 / VALUES_EVERY)
        self.updates = Frequency(schedule, _UPDATES)
        self._share = schedule.metrics_share
        self.reads = self.reads_update = True
        self.unrecorded: Callable[[], TrainingStep] | None = None
        self.checked = checked
        self._current = current
        self._records = True
        self._renewed = 0
        self._own = 0.0  # gradscope's seconds in the last step without readings

    def is_recorded(self, known: ObservedOptimizer | None) -> bool:
        """Return True if the ending step is recorded; a step whose loss changed by half or is NaN
        always is.
        """
        if self._records or self._current.nonfinite is not None:
            return True
        before = None if known is None else known.loss
        if not self._current.losses or before is None:
            return False
        now = self._current.loss
        return now is None or abs(now - before) > 0.5 * abs(before)

    def took(self, own: float, norms: float, recording: float) -> None:
        """Note a step that was recorded but not sampled.

        Args:
            own: gradscope's seconds until the optimizer had made its step.
            norms: the seconds for the records of parameters' norms.
            recording: the seconds for the record of the step.
        """
        self.records.took(recording)
        if not self._current.is_read:
            self._own = own
        elif self._own:
            self.readings.took(max(0.0, own - self._own) + norms)
        else:  # no step was without: what else is done in every one is not known
            self.readings.took(self._current.seconds + norms)

    def passed(self, own: float) -> None:
        """Note a step that was not recorded, and gradscope's seconds in it."""
        self._own = own

    def step_ended(self, steps: int) -> None:
        """Note the number of steps so far."""
        if steps // MEASURED != self._renewed:
            self._renewed = steps // MEASURED
            self.records.renew()
            self.updates.renew()
            used = min(_RECORDS, self.records.used) + min(_UPDATES, self.updates.used)
            self.readings.share = self._share - used
            self.readings.renew()
        self._records = self.records.includes(steps)
        self.reads = self._records and self.readings.includes(steps)
        self.reads_update = self._records and self.updates.includes(steps)

    def next_recorded(self, steps: int) -> int:
        """Return the first step after this one that is always recorded."""
        while not self.records.includes(steps):
            steps += 1
        return steps + 1
