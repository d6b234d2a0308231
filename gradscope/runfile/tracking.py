"""Reads the part of a run that an experiment tracker has not received, as metric rows and alerts.

The run file is the queue: a tracker that does not answer gets everything later, and nothing is kept
in memory for it. ``gradscope export`` reads once, a running training repeatedly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from gradscope.records.training import TrainingFinding, TrainingStep
from gradscope.runfile.exports.csv import model_names, parameter_series
from gradscope.runfile.metric_keys import PREFIX, KeySelection, Layer, key_of
from gradscope.runfile.reader import RunFile, Series

#: The key that has the number of the step: a tracker's own step counter is the script's.
STEP = f"{PREFIX}/step"
_METRICS = (
    *("loss", "gradient_norm", "clipped_norm", "update_rms", "learning_rate", "loss_scale"),
    "seconds",
)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """The numbers of a step by key. ``time`` is in seconds since 1970; ``sampled``: has layers."""

    step: int
    time: float
    values: dict[str, float]
    sampled: bool


@dataclass(frozen=True, slots=True)
class Alert:
    """A finding in words. ``title`` is the code, the rule and the place."""

    title: str
    text: str
    severity: str
    step: int
    time: float


class Tracker(Protocol):
    """Destination of a run's numbers. Each function may raise whatever the tracker's package
    raises.
    """

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Add rows, each step once or in parts, and findings, each once.

        Args:
            rows, alerts: the new ones.
            last: neither the run nor the script sends anything after it.
        """

    def close(self) -> None:
        """Send the waiting rows."""


@runtime_checkable
class KeepsFiles(Protocol):
    """A tracker that keeps files with a run."""

    def attach(self, page: Path) -> None:
        """Attach the run's page."""


#: Called by a tracker before the script's own run in it ends.
Ending = Callable[[], None]


@dataclass(frozen=True, slots=True)
class News:
    """New rows and alerts, and the step up to which they go."""

    rows: tuple[MetricRow, ...]
    alerts: tuple[Alert, ...]
    step: int
    sampled: int
    keys: frozenset[object] = frozenset()


@dataclass(slots=True)
class Unsent:
    """Reads what was not sent yet.

    Args:
        keys: the selection of numbers to send.
        norms: also send the norms of parameters at steps that were not sampled.
    """

    keys: KeySelection
    norms: bool = False
    _step: int = 0
    _sampled: int = 0
    _alerted: frozenset[object] = frozenset()
    _optimizers: set[str] = field(default_factory=set)

    def read(self, run: RunFile, *, complete: bool = False) -> News:
        """Return the new rows and alerts; the same again until ``sent`` was called.

        Args:
            run: the run.
            complete: the run has ended. Before its end, with several processes, only steps that all
                processes have written are read.

        Raises:
            ConfigError: the file is damaged.
        """
        last, until = (None, None) if complete else run.written_by_all
        steps = run.steps(self._step + 1, last)
        layers = dict(_layers(run, self._sampled, self.norms))
        sampled = max((one for series in layers.values() for one in series.steps), default=0)
        findings = run.findings
        self._optimizers |= {one.optimizer for one in steps}
        metrics = [(one, key, value) for one in steps for key, value in self._metrics(one)]
        for _, key, _ in metrics:
            self.keys.add(key)
        self.keys.rank(layers, findings, complete=complete)
        values: dict[int, dict[str, float]] = {}
        for one, key, value in metrics:
            if key in self.keys:
                values.setdefault(one.step, {})[key] = value
        of_layers: set[int] = set()
        for layer, series in layers.items():
            for key, step, value in _scalars(layer.label, series):
                if key in self.keys and (until is None or step <= until):
                    values.setdefault(step, {})[key] = value
                    of_layers.add(step)
        if until is not None:
            sampled = min(sampled, until)
        began = run.run.started
        first = min(of_layers, default=0)
        earlier = run.steps(first, self._step) if 0 < first <= self._step else ()
        times = {one.step: began + one.time for one in (*earlier, *steps)}
        rows = [
            MetricRow(step, times.get(step, began), values[step], step in of_layers)
            for step in sorted(values)
        ]
        new = [one for one in findings if one.key not in self._alerted]
        return News(
            tuple(rows),
            tuple(_alert(one, times, began) for one in new),
            max(self._step, steps[-1].step if steps else 0),
            max(self._sampled, sampled),
            frozenset(one.key for one in new),
        )

    def sent(self, news: News) -> None:
        """Note that the tracker has received the news."""
        self._step, self._sampled = news.step, news.sampled
        self._alerted |= news.keys

    def left(self, run: RunFile) -> int:
        """Number of steps in the file that the tracker has not received."""
        return len({one.step for one in run.steps(self._step + 1)})

    def _metrics(self, one: TrainingStep) -> Iterator[tuple[str, float]]:
        label = one.optimizer if len(self._optimizers) > 1 else ""
        rate = one.learning_rates[0] if one.learning_rates else None
        for name in _METRICS:
            value = rate if name == "learning_rate" else getattr(one, name)
            if value is not None:
                yield key_of(name, label), value


def _layers(run: RunFile, after: int, norms: bool) -> Iterator[tuple[Layer, Series]]:
    names = model_names(run)
    for (model, name, call), series in run.call_series(after=after).items():
        label = f"{names.get(model, model)}/{name}{f'#{call}' if call else ''}".rstrip("/")
        yield Layer(model, name, label), series
    of_parameters = parameter_series(run) if norms else run.parameter_series(after=after).items()
    for (model, name), series in of_parameters:
        yield Layer(model, name, f"{names.get(model, model)}/{name}"), series


def _scalars(label: str, series: Series) -> Iterator[tuple[str, int, float]]:
    for column, numbers in series.values.items():
        if column.endswith("nonfinite") and not any(numbers):
            continue  # thousands of charts of nothing
        key = key_of(column, label)
        for step, value in zip(series.steps, numbers, strict=True):
            if value is not None:
                yield key, step, value


def _alert(found: TrainingFinding, times: dict[int, float], began: float) -> Alert:
    first = found.steps[0][0] if found.steps else 0
    lines = [
        f"{found.name}: {found.message}" if found.name else found.message,
        *([f"cause: {found.cause}"] if found.cause else []),
        *([f"at {found.location}"] if found.location else []),
        *([found.advice] if found.advice else []),
    ]
    title = f"{found.code} {found.rule}" + (f": {found.name}" if found.name else "")
    return Alert(title, "\n".join(lines), found.severity, first, times.get(first, began))


def send(run: RunFile, tracker: Tracker, keys: KeySelection, *, norms: bool = False) -> int:
    """Send a run that has ended; return the number of rows."""
    news = Unsent(keys, norms=norms).read(run, complete=True)
    tracker.send(news.rows, news.alerts, last=True)
    return len(news.rows)


def attach(tracker: KeepsFiles, page: str) -> None:
    """Attach the run's HTML page to the run in a tracker."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradscope.html"
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
        tracker.attach(path)
