"""Converts records to rows of the tables and back. Lists and mappings are JSON text, compressed by
zlib if large."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from gradscope.errors import ConfigError
from gradscope.records.data import from_data, to_line
from gradscope.records.report import Finding
from gradscope.records.run import DeviceMesh, GroupNorm, ParameterPlacement
from gradscope.records.tensors import NormNames, ParameterNorms, finite_or_none
from gradscope.records.training import (
    Fingerprints,
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import MEASURES, Figures, TransformerSeries

_Record = TypeVar("_Record")
Value = Any  # what SQLite takes and gives: int, float, str, bytes or None
Row = tuple[Value, ...]

#: The tables whose columns are the fields of a record.
PLAIN: dict[type, str] = {
    TrainingRun: "run",
    TrainedModel: "model",
    TrainingEvent: "event",
    Fingerprints: "fingerprint",
    NormNames: "norm_names",
    ParameterNorms: "norm",
    DeviceMesh: "mesh",
    ParameterPlacement: "placement",
}
STEP = (
    *("step", "optimizer", "optimizer_step", "time", "seconds", "loss", "losses", "nonfinite"),
    *("gradient_norm", "clipped_norm", "learning_rate", "learning_rates", "loss_scale", "sampled"),
    *("norms", "own_seconds", "batch", "summed", "update_rms"),
)
_NUMBER, _WORDS = {float, type(None)}, {str, type(None)}
_STEP_TYPES: tuple[set[Any], ...] = (
    *({int}, {str}, {int}, {float}, {float}, _NUMBER, _WORDS, _WORDS),
    *(_NUMBER, _NUMBER, _NUMBER, _WORDS, _NUMBER, {int}, _WORDS),
    *(_NUMBER, {int, type(None)}, _WORDS, _NUMBER),
)
SAMPLE = ("step", "model", "record")
_OF_FINDING = tuple(f.name for f in fields(Finding))
FINDING = (
    *("key", *_OF_FINDING, "model", "first_step", "last_step", "steps", "origin"),
    "parameters",
)

#: Columns of JSON text.
_JSON = {
    *("arguments", "options", "versions", "notices", "details"),
    *("names", "shape", "ranks", "coordinate"),
    *("local_shape", "placements", "gradient_placements", "tensors"),
}
#: Fast enough beside a training, and a fifth of the size.
_LEVEL = 6


def columns(kind: Any) -> tuple[str, ...]:
    """Return the columns of a table in ``PLAIN``."""
    return tuple(f.name for f in fields(kind))


def plain_row(record: Any) -> Row:
    """Return the row of a record of a kind in ``PLAIN``."""
    return tuple(_cell(getattr(record, f.name)) for f in fields(record))


def step_row(record: TrainingStep) -> Row:
    """Return the row of the table ``step``.

    A single loss is in ``loss``, a single learning rate in ``learning_rate``; the lists are for
    several.
    """
    loss, rates = finite_or_none(record.loss), record.learning_rates
    rate = finite_or_none(rates[0]) if rates else None
    return (
        record.step,
        _text(record.optimizer),
        record.optimizer_step,
        finite_or_none(record.time),
        finite_or_none(record.seconds),
        loss,
        None if len(record.losses) == 1 and loss is not None else to_line(record.losses),
        record.nonfinite,
        finite_or_none(record.gradient_norm),
        finite_or_none(record.clipped_norm),
        rate,
        None if len(rates) == 1 and rate is not None else to_line(rates),
        finite_or_none(record.loss_scale),
        0,  # until it has a sample
        to_line(record.norms) if record.norms else None,
        finite_or_none(record.own_seconds),
        record.batch,
        None if record.summed is None else to_line(record.summed),
        finite_or_none(record.update_rms),
    )


def sample_row(sample: StepSample) -> Row:
    """Return the row of the table ``sample``: the full record, compressed."""
    packed = zlib.compress(to_line(sample).encode("ascii"), _LEVEL)
    return sample.step, sample.model, packed


def finding_row(record: TrainingFinding) -> Row:
    """Return the row of the table ``finding``."""
    return (
        to_line(record.key),
        *(_cell(getattr(record.finding, name)) for name in _OF_FINDING),
        record.model,
        min((first for first, _ in record.steps), default=None),
        max((last for _, last in record.steps), default=None),
        to_line(record.steps),
        None if record.origin is None else to_line(record.origin),
        None if record.parameters is None else to_line(record.parameters),
    )


def _cell(value: Any) -> Value:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return finite_or_none(value)
    return to_line(value) if isinstance(value, dict | list | tuple) else value


def _text(value: str) -> str:
    """Return the text without lone surrogates, which a path can contain and UTF-8 cannot."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_record(kind: type[_Record], row: Row, file: str) -> _Record:
    """Return the record from a row of ``plain_row``.

    Raises:
        ConfigError: the row is no such record; the functions below raise it too.
    """
    pairs = zip(columns(kind), row, strict=True)
    data = {name: _loads(cell, file) if name in _JSON else cell for name, cell in pairs}
    return _record(kind, data, file)


def step_records(rows: Sequence[Row], file: str) -> tuple[TrainingStep, ...]:
    """Return the records from rows of ``step_row``. There can be hundreds of thousands."""
    check_columns(rows, STEP, _STEP_TYPES, file)
    rates: dict[str, tuple[Any, ...]] = {}
    found = []
    for row in rows:
        number, name, count, time, seconds, loss, losses, bad, norm, clipped, rate, many = row[:12]
        if many is None:
            given: tuple[Any, ...] = (rate,)
        elif many in rates:
            given = rates[many]
        else:  # the same few texts over thousands of steps
            given = rates[many] = _read(_NUMBERS, many, file)
        all_losses = (loss,) if losses is None else _read(_NUMBERS, losses, file)
        found.append(
            TrainingStep(
                *(number, name, count, time, seconds, all_losses, bad, norm, clipped, given),
                loss_scale=row[12],
                sampled=bool(row[13]),
                norms=() if row[14] is None else _read(tuple[GroupNorm, ...], row[14], file),
                own_seconds=row[15],
                batch=row[16],
                summed=None if row[17] is None else _read(tuple[int, int], row[17], file),
                update_rms=row[18],
            )
        )
    return tuple(found)


def check_columns(
    rows: Sequence[Row], names: Sequence[str], allowed: Sequence[set[Any]], file: str
) -> None:
    """Check that each column has valid values, without a loop over them in Python.

    Raises:
        ConfigError: a column does not.
    """
    for name, types, column in zip(names, allowed, zip(*rows, strict=True), strict=False):
        wrong = set(map(type, column)) - types
        if wrong:
            raise ConfigError(f"`{file}` is damaged: `{name}` holds {wrong.pop().__name__}")


_NUMBERS = tuple[float | None, ...]


def _read(kind: type[_Record], text: str, file: str) -> _Record:
    return _record(kind, _loads(text, file), file)


def sample_record(packed: Value, file: str) -> StepSample:
    """Return the record from a row of ``sample_row``."""
    try:
        text = zlib.decompress(packed).decode("ascii")
    except (TypeError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"`{file}` is damaged: a sample cannot be unpacked ({error})") from None
    return _read(StepSample, text, file)


#: Of a part of a transformer: the model's id, the module, its call, the part within the call.
PartKey = tuple[int, str, int, int]


def transformer_series(
    kind: str, found: Sequence[Row], file: str
) -> dict[PartKey, TransformerSeries]:
    """Return the series of one kind from rows of the table ``transformer``."""
    grouped: dict[PartKey, list[tuple[int, dict[str, Figures]]]] = {}
    for step, model, _, name, call, part, text in found:
        figures = _read(dict[str, Figures], text, file)
        grouped.setdefault((model, name, call, part), []).append((step, figures))
    series = {}
    for (model, name, call, part), several in grouped.items():
        values = {m: tuple(one.get(m) for _, one in several) for m in MEASURES[kind]}
        steps = tuple(step for step, _ in several)
        series[model, name, call, part] = TransformerSeries(name, call, steps, values, model, part)
    return series


def finding_record(row: Row, file: str) -> TrainingFinding:
    """Return the record from a row of ``finding_row``."""
    cells = dict(zip(FINDING, row, strict=True))
    data = {
        "finding": {name: cells[name] for name in _OF_FINDING},
        "model": cells["model"],
        "steps": _loads(cells["steps"], file),
        **{
            name: None if cells[name] is None else _loads(cells[name], file)
            for name in ("origin", "parameters")
        },
    }
    return _record(TrainingFinding, data, file)


def _record(kind: type[_Record], data: Any, file: str) -> _Record:
    try:
        return from_data(kind, data, file=file)
    except ConfigError as error:
        raise ConfigError(f"`{file}` is damaged: {error}") from None


def _loads(text: Value, file: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"`{file}` is damaged: expected JSON ({error})") from None
