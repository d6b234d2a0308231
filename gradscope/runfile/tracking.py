"""Reads the part of a run that an experiment tracker has not received, as metric rows and alerts.

The run file is the queue: a tracker that does not answer gets everything later, and nothing is kept
in memory for it. ``gradscope export`` reads once, a running training repeatedly.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from gradscope.patterns import Named, Pattern
from gradscope.records.training import TrainingFinding, TrainingStep
from gradscope.runfile.exports.csv import model_names, parameter_series
from gradscope.runfile.reader import RunFile, Series

#: The start of every key, in all trackers.
PREFIX: Final = "gradscope"
#: Number of keys that a tracker gets by default.
MOST_KEYS: Final = 200
#: If the number of keys is limited, these columns of a layer are sent, the first ones first.
_COLUMNS: Final = (
    *("update_ratio", "grad_norm", "value_norm", "grad_out_norm", "out_std", "out_zeros"),
)
#: A layer is worse the farther it is from the others in one of these.
_COMPARED: Final = ("update_ratio", "grad_norm", "grad_out_norm")
#: This part of the keys is kept for layers that get a finding later.
_RESERVED: Final = 0.25
_SEVERITIES: Final = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Layer:
    """A parameter, or a call of a module: its model's id, its name, and the end of its charts'
    names."""

    model: int
    name: str
    label: str


def key_of(column: str, label: str = "") -> str:
    """Return the name of a chart: ``gradscope/grad_norm/net/fc.weight``."""
    return "/".join(filter(None, (PREFIX, column, label)))


class KeySelection:
    """Selects a limited number of keys for a full run: a chosen key stays chosen.

    Args:
        most: None takes all.
        layers: patterns; the layers that match come first.

    Raises:
        LayerError: a pattern is not a regular expression.
    """

    def __init__(self, most: int | None, layers: Sequence[str] = ("**",)) -> None:
        self._most = most
        self._patterns = [] if tuple(layers) == ("**",) else [Pattern(text) for text in layers]
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return self._most is None or key in self._keys

    def add(self, key: str) -> None:
        """Choose a key if there is room."""
        if self._most is not None and len(self._keys) < self._most:
            self._keys[key] = None

    def rank(
        self,
        layers: Mapping[Layer, Series],
        findings: Sequence[TrainingFinding],
        *,
        complete: bool,
    ) -> None:
        """Choose layers: those with findings, then those that differ most from the others.

        Args:
            layers: the layers with their newest numbers.
            findings: the findings of the run so far.
            complete: the run has ended, so no key is reserved for later.
        """
        if self._most is None or not layers:
            return
        found = {layer: worst for layer in layers if (worst := _severity(layer, findings))}
        self._take(sorted(found, key=lambda layer: found[layer]), layers, self._most)
        distances = _distances(layers)
        order = sorted(layers, key=lambda one: (not self._is_chosen(one), -distances[one]))
        until = self._most if complete else self._most - int(self._most * _RESERVED)
        self._take(order, layers, until)

    def _take(self, order: Iterable[Layer], layers: Mapping[Layer, Series], until: int) -> None:
        for layer in order:
            for column in _COLUMNS:
                if len(self._keys) >= until:
                    return
                if any(value is not None for value in layers[layer].values.get(column, ())):
                    self._keys[key_of(column, layer.label)] = None

    def _is_chosen(self, layer: Layer) -> bool:
        chosen = False
        for pattern in self._patterns:
            if any(pattern.matches(Named(name)) for name in _owners(layer.name)):
                chosen = not pattern.negated
        return chosen


def _owners(name: str) -> tuple[str, str]:
    """Return a module's name; for a parameter, also its module's name."""
    return name, name.rpartition(".")[0]


def _severity(layer: Layer, findings: Sequence[TrainingFinding]) -> int:
    """Return 1 for a layer with an error, 2 with a warning, 3 with an info; 0 without a finding."""
    found = [_SEVERITIES.index(one.severity) + 1 for one in findings if _concerns(one, layer)]
    return min(found, default=0)


def _concerns(found: TrainingFinding, layer: Layer) -> bool:
    if (layer.model, layer.name) in (found.parameters or ()):
        return True
    same = found.model is None or found.model == layer.model
    return same and found.name in _owners(layer.name)


def _distances(layers: Mapping[Layer, Series]) -> dict[Layer, float]:
    """Return each layer's distance from the median of the others, in powers of e; infinite for
    zero."""
    distances = dict.fromkeys(layers, 0.0)
    for column in _COMPARED:
        last = {
            layer: abs(series.values[column][-1] or 0.0)
            for layer, series in layers.items()
            if series.values.get(column, (None,))[-1] is not None
        }
        usual = statistics.median(positive) if (positive := [v for v in last.values() if v]) else 1
        for layer, value in last.items():
            away = abs(math.log(value / usual)) if value else math.inf
            distances[layer] = max(distances[layer], away)
    return distances


#: The key that has the number of the step: a tracker's own step counter is the script's.
STEP = f"{PREFIX}/step"
_METRICS = (
    *("loss", "gradient_norm", "clipped_norm", "update_rms", "learning_rate", "loss_scale"),
    "seconds",
)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """The numbers of a step by key. ``time``: seconds since 1970; ``sampled``: it has layers."""

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
    raises."""

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
        """Return the number of steps in the file that the tracker has not received."""
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
