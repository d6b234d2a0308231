"""The vital signs of each step: what of the gradients is read, and which steps are recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from gradscope.records.training import TrainingStep
from gradscope.training.cadence import MEASURED, Cadence
from gradscope.training.current_step import CurrentStep
from gradscope.training.interval import Interval
from gradscope.training.optimizers import SeenOptimizer


class VitalSigns:
    """Half of the budget is for them: to read all gradients, and to record a step.

    Attributes:
        records: how often a step is recorded that does not stand out.
        readings: how often all gradients are read; never where the step is not recorded.
        checked: whether it is seen in every step that all is finite.
        are_read: whether they are in the step that is going on.
        unrecorded: makes the record of the last step, where it was not due.
    """

    def __init__(self, interval: Interval, current: CurrentStep, *, checked: bool) -> None:
        self.records, self.readings = Cadence(interval, 1 / 4), Cadence(interval, 1 / 4)
        self.are_read = True
        self.unrecorded: Callable[[], TrainingStep] | None = None
        self._recorded = True
        self._renewed = 0
        self._own = 0.0  # gradscope's seconds in the last step without readings
        self._current, self.checked = current, checked

    def read(self, parameters: Sequence[nn.Parameter]) -> None:
        """Read the gradients of all of them as they are now."""
        self._current.read(parameters)

    def is_recorded(self, known: SeenOptimizer | None) -> bool:
        """Whether the step that ends now is: all that stand out are, as by half another loss."""
        if self._recorded or self._current.nonfinite is not None:
            return True
        before, losses = None if known is None else known.loss, self._current.losses
        if not losses or before is None:
            return False
        now = losses[-1]
        return now is None or abs(now - before) > 0.5 * abs(before)

    def took(self, own: float, recording: float) -> None:
        """A step was recorded, though it was not looked at.

        Args:
            own: gradscope's seconds until the optimizer had made its step.
            recording: those that the record took then.
        """
        self.records.took(recording)
        if self._current.is_read:
            self.readings.took(max(0.0, own - self._own))
        else:
            self._own = own

    def passed(self, own: float) -> None:
        """A step was not recorded, and took so many of gradscope's seconds."""
        self._own = own

    def step_ended(self, steps: int) -> None:
        """So many have been made."""
        if steps // MEASURED != self._renewed:
            self._renewed = steps // MEASURED
            self.readings.renew()
            self.records.renew()
        self._recorded = self.records.due(steps)
        self.are_read = self._recorded and self.readings.due(steps)

    def next_due(self, steps: int) -> int:
        """The number of the first step after so many that is recorded in any case."""
        while not self.records.due(steps):
            steps += 1
        return steps + 1
