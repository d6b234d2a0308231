"""Trackio: rows of the open run, findings as texts, and the page as an artifact."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradscope.records.training import TrainingRun
from gradscope.runfile.tracking import PREFIX, STEP, Alert, Ending, MetricRow, Tracker

packages = ("trackio",)
WITHOUT = "the thread that trains opened no run (`trackio.init()`)"


class TrackioRun:
    """A run of Trackio. Its step counter rises only if a row has a later step.

    Args:
        run: a ``trackio.run.Run``.
        own: gradscope opened the run, so its steps are the recorded ones.
    """

    def __init__(self, run: Any, *, own: bool) -> None:
        self._run, self._own = run, own

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Log the rows, and the findings as texts: Trackio's own alerts print to stdout."""
        for row in rows:
            self._log({**row.values, STEP: row.step}, row.step)
        if alerts:
            from trackio import Markdown

            for one in alerts:
                text = f"**{one.title}**\n\n{one.text}"
                self._log({f"{PREFIX}/finding": Markdown(text), STEP: one.step}, one.step)

    def attach(self, page: Path) -> None:
        """Keep the page as an artifact."""
        self._run.log_artifact(str(page), name=f"{PREFIX}-page", type=PREFIX)

    def close(self) -> None:
        """End the run if gradscope opened it."""
        if self._own:
            self._run.finish()

    def _log(self, values: dict[str, Any], step: int) -> None:
        self._run.log(values, step=step if self._own else max(self._run._next_step - 1, 0))


def joined(place: str, ending: Ending) -> Tracker | None:
    """Return the open run of this thread."""
    variables = sys.modules.get("trackio.context_vars")
    run: Any = variables.current_run.get() if variables is not None else None
    if run is None:
        return None
    finish = run.finish

    def finish_after_us() -> None:
        ending()
        finish()

    run.finish = finish_after_us
    return TrackioRun(run, own=False)


def opened(place: str, run: TrainingRun) -> Tracker:
    """Return a new run in the project of that name."""
    import trackio

    return TrackioRun(trackio.init(project=place, embed=False), own=True)
