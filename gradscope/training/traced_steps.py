"""The steps with a trace of every operation (``--deep FROM:TO``)."""

from __future__ import annotations

from gradscope.explain.non_finite.explain_non_finite import ScriptStepTracer
from gradscope.training.guard import Guard
from gradscope.training.launch import Script
from gradscope.training.models import Models


class TracedSteps:
    """Starts to trace before the first traced step, and ends after the last.

    Attributes:
        tracer: the tracer of the current step, if it is traced.
        wanted: True if there are steps to trace.

    Args:
        steps: the first and the last step to trace; None for none.
        guard: the guard, whose calls are not traced.
    """

    def __init__(self, steps: tuple[int, int] | None, guard: Guard) -> None:
        self.tracer: ScriptStepTracer | None = None
        self.wanted = steps is not None
        self._steps, self._guard = steps, guard

    def arm(self, upcoming: int, models: Models) -> None:
        """Prepare before the step of this number begins."""
        if self._steps is None:
            return
        first, last = self._steps
        if self.tracer is None and first <= upcoming <= last:
            named = {models.name(model): model.module for model in models}
            if named:
                self.tracer = ScriptStepTracer(named, Script.run.__code__)
                self._guard.around = self.tracer.ignoring
        elif upcoming > last:
            self.end()

    def end(self) -> None:
        """Stop tracing."""
        if self.tracer is not None:
            self.tracer.remove()
            self.tracer = self._guard.around = None
