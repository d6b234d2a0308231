"""Reads the file of one process, and gives a model the same number in the files of all ranks."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from gradscope.errors import ConfigError
from gradscope.records.ranks import Pace
from gradscope.records.run import DeviceMesh, ParameterPlacement
from gradscope.records.tensors import NormNames, NormSeries
from gradscope.records.training import (
    Fingerprints,
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import TransformerSeries
from gradscope.runfile import schema
from gradscope.runfile.folder import connect, reading
from gradscope.runfile.norm_series import COLUMNS as NORM_COLUMNS
from gradscope.runfile.norm_series import Key, norm_series

#: The tables that name a model, and the column.
_COLUMNS = {
    "model": "id",
    **dict.fromkeys(
        (
            *("sample", "call", "parameter", "transformer", "norm_names", "placement"),
            *("fingerprint", "finding"),
        ),
        "model",
    ),
}
#: Tables with rows in the network's order.
_ORDERED = ("call", "parameter", "transformer")
_MADE = ("type", "wrapper", "stage")


def shared_numbers(models: Sequence[TrainedModel], known: Sequence[TrainedModel]) -> dict[int, int]:
    """Map each model's number in this process to its number in ``known``.

    Each process numbers the models as it finds them.

    A model that only one rank has, such as an average of the weights on rank 0, shifts the numbers
    after it. Two models count as the same if they have the same class and wrapper, and the same
    name, or else the same size and place in the order. Any other model keeps its number if that is
    free, and else gets a new one.
    """
    left = list(known)
    numbers: dict[int, int] = {}
    for alike in (attrgetter("name", *_MADE), attrgetter("parameters", *_MADE)):
        for model in models:
            if model.id in numbers:
                continue
            same = next((other for other in left if alike(other) == alike(model)), None)
            if same is not None:
                left.remove(same)
                numbers[model.id] = same.id
    taken = {model.id for model in known}
    free = 1 + max(taken | {model.id for model in models}, default=0)
    for model in models:
        if model.id not in numbers:
            numbers[model.id] = free if model.id in taken else model.id
            free += model.id in taken
    return numbers


def renumber(connection: sqlite3.Connection, numbers: Mapping[int, int]) -> None:
    """Answer queries with these model numbers from now on; the file itself does not change."""
    cases = " ".join(f"WHEN {own} THEN {shared}" for own, shared in numbers.items())
    for table, column in _COLUMNS.items():
        names = [name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})")]
        if not names:  # an older file does not have them all
            continue
        shown = [
            f"CASE {name} {cases} ELSE {name} END AS {name}" if name == column else name
            for name in names
        ]
        shown += ["rowid AS rowid"] if table in _ORDERED else []
        # SQLite reads a temporary view before a table of the same name.
        connection.execute(
            f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)} FROM main.{table}"
        )


_Record = TypeVar("_Record")
#: The key of a part of a transformer: the model's id, the module, its call, the part within the
#: call.
PartKey = schema.PartKey
#: The key of fingerprints: the model's id, the kind, and the shard.
Copies = tuple[int, str, str]
#: With fewer steps, the usual pace is unknown.
_FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one layer or parameter over the sampled steps: a tuple for each column.

    None stands for a missing number, as for a gradient that never came or an empty tensor.
    ``lowest`` and ``highest`` are over all ranks, if several ranks have their own values. ``fault``
    is the reason why a parameter has no global norm at some step: "flat" (pieces of FSDP1),
    "partial", "missing", or "differs" (ranks that should hold the same values do not).
    """

    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    lowest: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    highest: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    fault: str | None = None


class RankFile:
    """One process's file, opened for reading: with this process's shards of sharded parameters.

    Each method reads the file as it is at that moment.

    Raises:
        ConfigError: it is no run, or of a newer gradscope. Each method may raise it too: a file can
            be damaged anywhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = connect(path)
        self._numbers: dict[int, int] = {}

    def number_as(self, known: Sequence[TrainedModel]) -> None:
        """Use the models' numbers in ``known`` from now on; see ``shared_numbers``."""
        numbers = shared_numbers(self.models, known)
        self._numbers = {own: shared for own, shared in numbers.items() if own != shared}
        if self._numbers:
            with reading(self.path):
                renumber(self._connection, self._numbers)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def run(self) -> TrainingRun:
        """Header of the run. While it goes on, its ``steps`` are those that are written."""
        found = self._rows(f"SELECT {self._columns('run', schema.columns(TrainingRun))} FROM run")
        if not found:
            raise ConfigError(f"`{self.path}` is damaged: the header of the run is missing")
        run = schema.plain_record(TrainingRun, found[0], str(self.path))
        return replace(run, steps=max(run.steps, self.last_step))

    @property
    def models(self) -> tuple[TrainedModel, ...]:
        """The models, by id."""
        return self._records(TrainedModel, "id")

    @property
    def events(self) -> tuple[TrainingEvent, ...]:
        """Returns the events of the run, in order."""
        return self._records(TrainingEvent, "id")

    @property
    def meshes(self) -> tuple[DeviceMesh, ...]:
        """The meshes over which parameters are placed, by id."""
        return self._records(DeviceMesh, "id")

    @property
    def placements(self) -> tuple[ParameterPlacement, ...]:
        """Placement of the parameters; empty in a run of one process."""
        return self._records(ParameterPlacement, "model, name")

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """Returns the findings of the run, the first found first."""
        columns = self._columns("finding", schema.FINDING)
        found = self._rows(f"SELECT {columns} FROM finding ORDER BY id")
        return tuple(self._numbered(schema.finding_record(row, str(self.path))) for row in found)

    def _numbered(self, found: TrainingFinding) -> TrainingFinding:
        """Return the finding with the shared numbers of models."""
        if not self._numbers or found.parameters is None:
            return found
        numbers = self._numbers
        shared = tuple((numbers.get(model, model), name) for model, name in found.parameters)
        return replace(found, parameters=shared)

    @property
    def digests(self) -> dict[tuple[int, Copies], str]:
        """The fingerprints of all tensors of a kind together, by step, model, kind and part."""
        columns = ("step", "model", "kind", "part", "digest")
        if not self._columns("fingerprint", columns):
            return {}
        found = self._rows(f"SELECT {', '.join(columns)} FROM fingerprint ORDER BY step")
        allowed = ({int}, {int}, {str}, {str}, {str})
        schema.check_columns(found, columns, allowed, str(self.path))
        return {(step, tuple(copies)): digest for step, *copies, digest in found}

    def fingerprints(self, step: int, copies: Copies) -> dict[str, str]:
        """Return the fingerprint of each tensor; none if they were thinned out."""
        query = (
            f"SELECT {', '.join(schema.columns(Fingerprints))} FROM fingerprint "
            "WHERE step = ? AND model = ? AND kind = ? AND part = ?"
        )
        found = self._rows(query, step, *copies)
        records = [schema.plain_record(Fingerprints, row, str(self.path)) for row in found]
        return records[0].tensors if records else {}

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Number of steps with each batch size."""
        steps = f"(SELECT {self._columns('step', ('batch',))} FROM step)"
        query = f"SELECT batch, count(*) FROM {steps} WHERE batch IS NOT NULL GROUP BY batch"
        return dict(self._rows(query))

    def odd_batches(self, usual: int, most: int) -> list[int]:
        """Return the first steps whose batch has another size."""
        query = "SELECT step FROM step WHERE batch <> ? ORDER BY step LIMIT ?"
        return [step for (step,) in self._rows(query, usual, most)]

    def batches(self, steps: Sequence[int]) -> dict[int, int]:
        """Return the batch sizes of these steps, as far as known."""
        marks = ", ".join("?" * len(steps))
        query = f"SELECT step, batch FROM step WHERE step IN ({marks}) AND batch IS NOT NULL"
        return dict(self._rows(query, *steps))

    def pace(self, most: int) -> Pace | None:
        """Return the pace of the last steps that were not sampled; None if there are too few."""
        columns = self._columns("step", ("step", "seconds", "own_seconds", "sampled"))
        query = (
            f"SELECT seconds, own_seconds FROM (SELECT {columns} FROM step) "
            "WHERE own_seconds IS NOT NULL AND NOT sampled ORDER BY step DESC LIMIT ?"
        )
        found = self._rows(query, most)
        if len(found) < _FEWEST_STEPS:
            return None
        every, own = zip(*found, strict=True)
        least, median, _ = statistics.quantiles(own, n=4)
        return Pace(statistics.median(every), median, least)

    @property
    def last_step(self) -> int:
        """The number of the last step that is written; 0 before the first."""
        ((last,),) = self._rows("SELECT max(step) FROM step")
        if last is not None and not isinstance(last, int):
            raise ConfigError(f"`{self.path}` is damaged: a step has no number")
        return last or 0

    def steps(self, first: int = 1, last: int | None = None) -> tuple[TrainingStep, ...]:
        """Return the step metrics of these steps, both ends included, as far as they are kept."""
        columns = self._columns("step", schema.STEP)
        query = f"SELECT {columns} FROM step WHERE step BETWEEN ? AND ? ORDER BY step"
        found = self._rows(query, first, self.last_step if last is None else last)
        return schema.step_records(found, str(self.path))

    @property
    def sampled(self) -> tuple[int, ...]:
        """The numbers of the steps that have samples."""
        found = self._rows("SELECT DISTINCT step FROM sample ORDER BY step")
        return tuple(step for (step,) in found)

    def sample(self, step: int, model: int | None = None) -> tuple[StepSample, ...]:
        """Return the samples of a step by model, or of one model only; empty if there is none."""
        query = (
            "SELECT record FROM sample WHERE step = ? AND (? IS NULL OR model = ?) ORDER BY model"
        )
        found = self._rows(query, step, model, model)
        samples = [schema.sample_record(packed, str(self.path)) for (packed,) in found]
        return tuple(replace(one, model=self._numbers.get(one.model, one.model)) for one in samples)

    def call_series(
        self, model: int | None = None, *, after: int = 0
    ) -> dict[tuple[int, str, int], Series]:
        """Return series by model id, module name and call, in execution order; see
        ``CALL_COLUMNS``."""
        return self._series("call", ("model", "name", "call"), schema.CALL_COLUMNS, model, after)

    def parameter_series(
        self, model: int | None = None, *, after: int = 0
    ) -> dict[tuple[int, str], Series]:
        """Return series by model id and parameter name, in model order; see
        ``PARAMETER_COLUMNS``."""
        return self._series("parameter", ("model", "name"), schema.PARAMETER_COLUMNS, model, after)

    def transformer_series(self, kind: str) -> dict[PartKey, TransformerSeries]:
        """Return the series of attention, experts or residual stream, by ``kind``, in execution
        order."""
        columns = schema.TRANSFORMER
        if not self._columns("transformer", columns):
            return {}
        query = f"SELECT {', '.join(columns)} FROM transformer WHERE kind = ? ORDER BY rowid"
        found = self._rows(query, kind)
        allowed = ({int}, {int}, {str}, {str}, {int}, {int}, {str})
        schema.check_columns(found, columns, allowed, str(self.path))
        return schema.transformer_series(kind, found, str(self.path))

    def norm_series(self, after: int = 0) -> dict[Key, NormSeries]:
        """Return the norms at every step after ``after``, by model id and parameter name."""
        names = self._records(NormNames, "id")
        if not names:
            return {}
        query = f"SELECT {', '.join(NORM_COLUMNS)} FROM norm WHERE step > ? ORDER BY id"
        return norm_series(names, self._rows(query, after), str(self.path))

    def _series(
        self,
        table: str,
        key: tuple[str, ...],
        columns: tuple[str, ...],
        model: int | None,
        after: int,
    ) -> dict[Any, Series]:
        query = (
            f"SELECT {self._columns(table, (*key, 'step', *columns))} FROM {table} "
            "WHERE (? IS NULL OR model = ?) AND step > ? ORDER BY rowid"
        )
        found = self._rows(query, model, model, after)
        optional = {int, float, type(None)}
        types = ({int}, {str}, {int})[: len(key)]
        allowed = (*types, {int}, *(optional for _ in columns))
        schema.check_columns(found, (*key, "step", *columns), allowed, str(self.path))
        width = len(key)
        grouped: dict[schema.Row, list[schema.Row]] = {}
        for row in found:
            grouped.setdefault(row[:width], []).append(row[width:])
        series = {}
        for name, numbers in grouped.items():
            steps, *values = zip(*numbers, strict=True)
            series[name] = Series(steps, dict(zip(columns, values, strict=True)))
        return series

    def _records(self, kind: type[_Record], order: str) -> tuple[_Record, ...]:
        """Return the rows of a kind's own table; empty if the file has no such table."""
        table = schema.PLAIN[kind]
        columns = self._columns(table, schema.columns(kind))
        if not columns:
            return ()
        found = self._rows(f"SELECT {columns} FROM {table} ORDER BY {order}")
        return tuple(schema.plain_record(kind, row, str(self.path)) for row in found)

    def _columns(self, table: str, wanted: Sequence[str]) -> str:
        """Return the columns for a query: the old names in older files, NULL for missing columns,
        "" for a missing table."""
        there = {name for _, name, *_ in self._rows(f"PRAGMA table_info({table})")}
        if not there:
            return ""

        def column(name: str) -> str:
            old = schema.OLD_COLUMNS.get(name)
            if name in there:
                return name
            return f"{old if old in there else 'NULL'} AS {name}"

        return ", ".join(map(column, wanted))

    def _rows(self, query: str, *arguments: int | str | None) -> list[schema.Row]:
        with reading(self.path):
            return self._connection.execute(query, arguments).fetchall()
