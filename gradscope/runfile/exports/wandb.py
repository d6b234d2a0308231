"""Weights & Biases: rows of the open run, alerts, and the page as an artifact."""

from __future__ import annotations

import atexit
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gradscope.records.training import TrainingRun
from gradscope.runfile.tracking import PREFIX, STEP, Alert, Ending, MetricRow, Tracker

packages = ("wandb",)
WITHOUT = "the process that trains opened no run (`wandb.init()`)"

_LEVELS: Final = {"error": "ERROR", "warning": "WARN", "info": "INFO"}
#: W&B's limit.
_TITLE = 63
#: Number of rows that wait for the script to log; with 200 keys, some 20 MB.
_MOST_WAITING = 1024


class WandbRun:
    """A run of W&B.

    A run of W&B has one step counter, which each committed row raises. While the script trains,
    gradscope adds its row to the script's next row and commits nothing: the script's counter and
    number of rows do not change. Each row of the script can carry one of gradscope's rows: the
    newest sampled step, or else the newest step. Other sampled steps wait; other steps are left
    out. After the script has stopped logging, the waiting rows are committed.

    Args:
        run: a ``wandb.Run``.
        own: gradscope opened the run, so each row can be committed.
    """

    def __init__(self, run: Any, *, own: bool) -> None:
        self._run, self._own = run, own
        self._sampled: deque[MetricRow] = deque(maxlen=_MOST_WAITING)
        self._others: deque[MetricRow] = deque(maxlen=_MOST_WAITING)
        self._step: int | None = None  # that of the script's row that carries our last one
        self._defined: set[str] = set()
        run.define_metric(STEP, hidden=True)

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Send findings as alerts, and add at most one row to the script's current row."""
        for one in alerts:
            title = one.title[:_TITLE]
            self._run.alert(title, one.text, _LEVELS[one.severity], wait_duration=0)
        for row in rows:
            (self._sampled if row.sampled else self._others).append(row)
        if self._own or last:
            self._commit()
        elif self._step is None or self._run.step > self._step:
            self._carry()

    def attach(self, page: Path) -> None:
        """Keep the page as an artifact."""
        import wandb

        artifact = wandb.Artifact(f"{PREFIX}-{self._run.id}", type=PREFIX)
        artifact.add_file(str(page), name=page.name)
        self._run.log_artifact(artifact)

    def close(self) -> None:
        """End the run if gradscope opened it."""
        if self._own:
            self._run.finish()

    def _carry(self) -> None:
        """Put one row into the script's next."""
        newest = self._sampled or self._others
        if newest:
            self._log(newest.pop(), commit=False)
            self._others.clear()
            # The script may have committed it by now, or a row before it.
            self._step = self._run.step

    def _commit(self) -> None:
        """Add the rows that wait, as rows of the run."""
        rows = sorted((*self._sampled, *self._others), key=lambda row: row.step)
        if rows and self._step is not None and self._run.step == self._step:
            self._run.log({}, commit=True)  # the row that carries our last one
        for row in rows:
            self._log(row, commit=True)
        self._sampled.clear()
        self._others.clear()

    def _log(self, row: MetricRow, *, commit: bool) -> None:
        # Key by key: a script can have its own x-axis for `*`, as the Trainer of transformers has.
        for key in row.values.keys() - self._defined:
            self._run.define_metric(key, step_metric=STEP)
            self._defined.add(key)
        self._run.log({**row.values, STEP: row.step}, commit=commit)


def joined(place: str, ending: Ending) -> Tracker | None:
    """Return the open run."""
    run: Any = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or run.disabled:
        return None
    from wandb.sdk.wandb_run import TeardownHook, TeardownStage

    # W&B's own code uses this hook, which `finish()` and `with` both call. At the interpreter's
    # end, W&B closes its connection; functions registered later are called before that.
    run._teardown_hooks.append(TeardownHook(ending, TeardownStage.EARLY))
    atexit.register(ending)
    return WandbRun(run, own=False)


def opened(place: str, run: TrainingRun) -> Tracker:
    """Return a new run in the project of that name."""
    import wandb

    config = {"script": run.script, "arguments": list(run.arguments), **run.versions}
    return WandbRun(wandb.init(project=place, config=config, reinit="create_new"), own=True)
