"""MLflow: metrics of a run, findings as its tags, and the page as an artifact."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from gradscope.records.training import TrainingRun
from gradscope.runfile.tracking import PREFIX, Alert, Ending, MetricRow, Tracker

packages = ("mlflow",)
WITHOUT = "the thread that trains has no active run (`mlflow.start_run()`)"

#: MLflow's limits of one request, and of a tag.
_MOST_METRICS, _MOST_TAGS, _MOST_CHARACTERS, _LONGEST_KEY = 1000, 100, 5000, 250
#: Characters that a name must not have.
_REFUSED: Final = re.compile(r"[^\w./ -]")
#: Time that a server may take to answer, in seconds.
_TIMEOUT = 60


class MlflowRun:
    """A run of MLflow: each value of a metric has its own step, so no step counter is shared with
    the script.

    Args:
        client: a ``mlflow.MlflowClient``.
        run: the run's id.
        own: end it at the end.
    """

    def __init__(self, client: Any, run: str, *, own: bool) -> None:
        self._client, self._run, self._own = client, run, own

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Log the rows as metrics, and the findings as tags."""
        from mlflow.utils import logging_utils

        metrics = [
            {
                "key": name_of(key),
                "value": value,
                "timestamp": int(row.time * 1000),
                "step": row.step,
            }
            for row in rows
            for key, value in row.values.items()
        ]
        tags = [
            {"key": name_of(f"{PREFIX}/{one.title}"), "value": one.text[:_MOST_CHARACTERS]}
            for one in alerts
        ]
        # A store that fails, as with a full disk, also logs its error to standard error, which is
        # the script's.
        # An older MLflow has no such option.
        with getattr(logging_utils, "suppress_logs_in_thread", contextlib.nullcontext)():
            for part in _parts(metrics, _MOST_METRICS):
                self._log(part, [])
            for part in _parts(tags, _MOST_TAGS):
                self._log([], part)

    def attach(self, page: Path) -> None:
        """Keep the page as an artifact."""
        self._client.log_artifact(self._run, str(page), PREFIX)

    def close(self) -> None:
        """End the run if gradscope opened it."""
        if self._own:
            self._client.set_terminated(self._run)

    def _log(self, metrics: list[dict[str, Any]], tags: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric, RunTag

        address = self._client.tracking_uri
        if not address.startswith(("http://", "https://")):
            found = [Metric(*one.values()) for one in metrics]
            self._client.log_batch(self._run, found, tags=[RunTag(*one.values()) for one in tags])
            return
        # The client's own request draws from `random` before it tries again, and would change what
        # the script draws. This one fails at once, and is tried again later.
        from mlflow.utils import credentials, rest_utils

        known: Any = credentials  # neither has types
        rest: Any = rest_utils
        rest.http_request_safe(
            known.get_default_host_creds(address),
            "/api/2.0/mlflow/runs/log-batch",
            "POST",
            json={"run_id": self._run, "metrics": metrics, "tags": tags},
            max_retries=0,
            timeout=_TIMEOUT,
        )


def name_of(key: str) -> str:
    """Return a key in the form that MLflow accepts."""
    return _REFUSED.sub("_", key)[:_LONGEST_KEY]


def _parts(items: list[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]


def joined(place: str, ending: Ending) -> Tracker | None:
    """Return the active run of this thread."""
    mlflow: Any = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    return None if run is None else MlflowRun(mlflow.MlflowClient(), run.info.run_id, own=False)


def opened(place: str, run: TrainingRun) -> Tracker:
    """Return a new run in the experiment of that name, which is created if it is missing."""
    import mlflow

    client = mlflow.MlflowClient()
    known = client.get_experiment_by_name(place)
    experiment = client.create_experiment(place) if known is None else known.experiment_id
    started = int(run.started * 1000)
    made = client.create_run(experiment, start_time=started, run_name=Path(run.script).stem)
    return MlflowRun(client, made.info.run_id, own=True)
