"""What ``show`` and the others read of a run, also while it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gradscope.errors import ConfigError
from gradscope.records.training import (
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile import rows, schema
from gradscope.runfile.opening import connect, files_of, reading


@dataclass(frozen=True, slots=True)
class Series:
    """What one layer or parameter was in each sampled step: a tuple of numbers for each column.

    None stands where there is no number, as for a gradient that never came or an empty tensor.
    """

    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]


class RunFile:
    """A run, opened for reading. Each question is asked of the file as it is at that moment.

    Of a run of several processes, models, steps, samples and series are those of the lowest rank;
    ``runs``, ``events`` and ``findings`` are of all.
    """

    def __init__(self, opened: Sequence[tuple[Path, sqlite3.Connection]]) -> None:
        self._opened = tuple(opened)
        self.path, self._connection = self._opened[0]

    @classmethod
    def open(cls, path: Path) -> RunFile:
        """A run's file, or the folder with a file for each rank.

        Raises:
            ConfigError: there is none, or it is no run, damaged, or of a newer gradscope. So may
                each question: a file can be damaged anywhere.
        """
        opened: list[tuple[Path, sqlite3.Connection]] = []
        try:
            for file in files_of(path):
                opened.append((file, connect(file)))
        except BaseException:
            for _, connection in opened:
                connection.close()
            raise
        return cls(opened)

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        for _, connection in self._opened:
            connection.close()

    @property
    def run(self) -> TrainingRun:
        """How the script was run. While it goes on, its ``steps`` are those that are written."""
        return self.runs[0]

    @property
    def runs(self) -> tuple[TrainingRun, ...]:
        """The same of each rank."""
        found = []
        for path, connection in self._opened:
            query = f"SELECT {', '.join(rows.RUN)} FROM run"
            with reading(path):
                row = connection.execute(query).fetchone()
            if row is None:
                raise ConfigError(f"`{path}` is damaged: it does not say what was run")
            run = rows.plain_record(TrainingRun, rows.RUN, row, str(path))
            found.append(replace(run, steps=max(run.steps, _last_step(path, connection))))
        return tuple(found)

    @property
    def models(self) -> tuple[TrainedModel, ...]:
        """The models, by id."""
        query = f"SELECT {', '.join(rows.MODEL)} FROM model ORDER BY id"
        found = self._rows(query)
        return tuple(
            rows.plain_record(TrainedModel, rows.MODEL, row, str(self.path)) for row in found
        )

    @property
    def events(self) -> tuple[TrainingEvent, ...]:
        """What happened, in its order; ``details`` of another rank's events have its ``rank``."""
        query = f"SELECT {', '.join(rows.EVENT)} FROM event ORDER BY id"
        found: list[TrainingEvent] = []
        for run, (path, connection) in zip(self.runs, self._opened, strict=True):
            for row in _fetch(path, connection, query):
                event = rows.plain_record(TrainingEvent, rows.EVENT, row, str(path))
                if connection is not self._connection:
                    event = replace(event, details={**event.details, "rank": run.rank})
                found.append(event)
        if len(self._opened) > 1:
            found.sort(key=lambda event: event.time)
        return tuple(found)

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """What the rules found, first found first; of all ranks, each once."""
        query = f"SELECT {', '.join(rows.FINDING)} FROM finding ORDER BY id"
        found: dict[object, TrainingFinding] = {}
        for path, connection in self._opened:
            for row in _fetch(path, connection, query):
                finding = rows.finding_record(row, str(path))
                found.setdefault(finding.key, finding)
        return tuple(found.values())

    @property
    def last_step(self) -> int:
        """The number of the last step that is written; 0 before the first."""
        return _last_step(self.path, self._connection)

    def steps(self, first: int = 1, last: int | None = None) -> tuple[TrainingStep, ...]:
        """The vital signs of these steps, both ends in, as far as they are kept."""
        query = f"SELECT {', '.join(rows.STEP)} FROM step WHERE step BETWEEN ? AND ? ORDER BY step"
        found = self._rows(query, first, self.last_step if last is None else last)
        return rows.step_records(found, str(self.path))

    @property
    def sampled(self) -> tuple[int, ...]:
        """The numbers of the steps that have samples."""
        found = self._rows("SELECT DISTINCT step FROM sample ORDER BY step")
        return tuple(step for (step,) in found)

    def sample(self, step: int, model: int | None = None) -> tuple[StepSample, ...]:
        """The samples of a step, by model, or that of one model; none where it has none."""
        query = (
            "SELECT record FROM sample WHERE step = ? AND (? IS NULL OR model = ?) ORDER BY model"
        )
        found = self._rows(query, step, model, model)
        return tuple(rows.sample_record(packed, str(self.path)) for (packed,) in found)

    def call_series(self, model: int | None = None) -> dict[tuple[int, str, int], Series]:
        """By model id, module name and call, in the order of execution; see ``CALL_COLUMNS``."""
        return self._series("call", ("model", "name", "call"), schema.CALL_COLUMNS, model)

    def parameter_series(self, model: int | None = None) -> dict[tuple[int, str], Series]:
        """By model id and parameter name, in the order of the model; see ``PARAMETER_COLUMNS``."""
        return self._series("parameter", ("model", "name"), schema.PARAMETER_COLUMNS, model)

    def _series(
        self, table: str, key: tuple[str, ...], columns: tuple[str, ...], model: int | None
    ) -> dict[Any, Series]:
        query = (
            f"SELECT {', '.join((*key, 'step', *columns))} FROM {table} "
            "WHERE ? IS NULL OR model = ? ORDER BY rowid"
        )
        found = self._rows(query, model, model)
        optional = {int, float, type(None)}
        types = ({int}, {str}, {int})[: len(key)]
        allowed = (*types, {int}, *(optional for _ in columns))
        rows.check_columns(found, (*key, "step", *columns), allowed, str(self.path))
        width = len(key)
        grouped: dict[rows.Row, list[rows.Row]] = {}
        for row in found:
            grouped.setdefault(row[:width], []).append(row[width:])
        series = {}
        for name, numbers in grouped.items():
            steps, *values = zip(*numbers, strict=True)
            series[name] = Series(steps, dict(zip(columns, values, strict=True)))
        return series

    def _rows(self, query: str, *arguments: int | None) -> list[rows.Row]:
        return _fetch(self.path, self._connection, query, *arguments)


def _fetch(
    path: Path, connection: sqlite3.Connection, query: str, *arguments: int | None
) -> list[rows.Row]:
    with reading(path):
        return connection.execute(query, arguments).fetchall()


def _last_step(path: Path, connection: sqlite3.Connection) -> int:
    ((last,),) = _fetch(path, connection, "SELECT max(step) FROM step")
    if last is not None and not isinstance(last, int):
        raise ConfigError(f"`{path}` is damaged: a step has no number")
    return last or 0
