"""The tables of a run file, as docs/run-file.md describes them, and the rows of each record.

Lists and mappings are JSON text, compressed by zlib if large.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from gradscope.errors import ConfigError
from gradscope.records.data import from_data, to_line
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Finding
from gradscope.records.run import DeviceMesh, GroupNorm, ParameterPlacement
from gradscope.records.tensors import NormNames, ParameterNorms, TensorStats, finite_or_none
from gradscope.records.training import (
    Fingerprints,
    GradientParts,
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import MEASURES, PROBES, Figures, TransformerSeries, figures_of

#: Schema in the table ``run``, equal to the number in ``PRAGMA user_version``.
SCHEMA: Final = "gradscope.run/2"
VERSION: Final = 2
#: Columns that version 1 called otherwise: new name → old name.
OLD_COLUMNS: Final = {"sampled_seconds": "watched"}
#: ``PRAGMA application_id``: it separates a run from another program's file, whatever its tables.
APPLICATION: Final = int.from_bytes(b"grad")

#: Largest number of rows of step metrics and of events; the latest half is complete.
MOST_STEPS: Final = 200_000
MOST_EVENTS: Final = 10_000
#: Largest size of the parameters' norms in bytes; number of rows of the same parameters that always
#: stay.
MOST_NORM_BYTES: Final = 32 << 20
LEAST_NORMS: Final = 256
#: Number of sampled steps that are kept by default, and the smallest number that thinning can keep.
KEEP: Final = 512
LEAST_KEEP: Final = 16

#: Statistics of one tensor, or of several as if they were one. ``zeros`` is a share from 0 to 1,
#: ``nonfinite`` a count.
CALL_COLUMNS: Final = (
    *("out_norm", "out_mean", "out_std", "out_min", "out_max", "out_zeros", "out_nonfinite"),
    *("grad_out_norm", "grad_out_nonfinite", "grad_in_norm", "grad_in_nonfinite"),
)
PARAMETER_COLUMNS: Final = (
    *("value_norm", "grad_norm", "clipped_norm", "update_norm", "update_ratio"),
    *("zeros", "nonfinite"),
    *("update_rms", "effective_lr", "cosine", "decay_share", "m_norm", "v_norm", "v_spread"),
    *("spectral_norm", "stable_rank"),
)
TRANSFORMER: Final = ("step", "model", "kind", "name", "call", "part", "figures")

#: Columns of a parameter's fields by the same name.
OF_UPDATE: Final = PARAMETER_COLUMNS[PARAMETER_COLUMNS.index("update_rms") :]

COUNTS: Final = ("out_nonfinite", "grad_out_nonfinite", "grad_in_nonfinite", "nonfinite")


def _numbers(columns: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {'INTEGER' if name in COUNTS else 'REAL'}" for name in columns)


#: One statement each.
TABLES: Final = (
    """CREATE TABLE run (
        schema TEXT NOT NULL, script TEXT NOT NULL, arguments TEXT, directory TEXT, options TEXT,
        versions TEXT, device TEXT, rank INTEGER, world_size INTEGER, started REAL, ended REAL,
        exit TEXT, steps INTEGER, every INTEGER, plain REAL, sampled_seconds REAL, cost REAL,
        notices TEXT, cost_seconds REAL, cut TEXT
    )""",
    """CREATE TABLE model (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT, parameters INTEGER,
        trainable INTEGER, modules INTEGER, first_step INTEGER, wrapper TEXT,
        stage INTEGER, autocast TEXT, compiled TEXT
    )""",
    """CREATE TABLE step (
        step INTEGER PRIMARY KEY, optimizer TEXT, optimizer_step INTEGER, time REAL, seconds REAL,
        loss REAL, losses TEXT, nonfinite TEXT, gradient_norm REAL, clipped_norm REAL,
        learning_rate REAL, learning_rates TEXT, loss_scale REAL, sampled INTEGER,
        norms TEXT, own_seconds REAL, batch INTEGER, summed TEXT, update_rms REAL,
        parts TEXT
    )""",
    "CREATE INDEX step_sampled ON step (step) WHERE sampled",
    """CREATE TABLE norm_names (
        id INTEGER PRIMARY KEY, model INTEGER NOT NULL, names TEXT NOT NULL
    )""",
    """CREATE TABLE norm (
        id INTEGER PRIMARY KEY, step INTEGER NOT NULL, names INTEGER NOT NULL,
        number INTEGER NOT NULL, gradient BLOB, clipped BLOB, value BLOB
    )""",
    """CREATE TABLE sample (
        step INTEGER NOT NULL, model INTEGER NOT NULL, record BLOB, PRIMARY KEY (step, model)
    ) WITHOUT ROWID""",
    """CREATE TABLE mesh (
        id INTEGER PRIMARY KEY, names TEXT, shape TEXT, ranks TEXT, coordinate TEXT
    )""",
    """CREATE TABLE placement (
        model INTEGER NOT NULL, name TEXT NOT NULL, shape TEXT, local_shape TEXT, mesh INTEGER,
        placements TEXT, gradient_placements TEXT, norm_group INTEGER, PRIMARY KEY (model, name)
    ) WITHOUT ROWID""",
    f"""CREATE TABLE call (
        step INTEGER NOT NULL, model INTEGER NOT NULL, name TEXT NOT NULL, call INTEGER NOT NULL,
        type TEXT, {_numbers(CALL_COLUMNS)}
    )""",
    "CREATE INDEX call_step ON call (step)",
    f"""CREATE TABLE parameter (
        step INTEGER NOT NULL, model INTEGER NOT NULL, name TEXT NOT NULL,
        {_numbers(PARAMETER_COLUMNS)}
    )""",
    "CREATE INDEX parameter_step ON parameter (step)",
    """CREATE TABLE transformer (
        step INTEGER NOT NULL, model INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
        call INTEGER NOT NULL, part INTEGER NOT NULL, figures TEXT NOT NULL
    )""",
    "CREATE INDEX transformer_step ON transformer (step)",
    """CREATE TABLE fingerprint (
        step INTEGER NOT NULL, model INTEGER NOT NULL, kind TEXT NOT NULL, part TEXT NOT NULL,
        digest TEXT NOT NULL, tensors TEXT, PRIMARY KEY (step, model, kind, part)
    ) WITHOUT ROWID""",
    """CREATE TABLE finding (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, code TEXT, rule TEXT, severity TEXT,
        model INTEGER, name TEXT, call INTEGER, message TEXT, advice TEXT, value REAL,
        threshold REAL, source TEXT, cause TEXT, location TEXT, made TEXT,
        first_step INTEGER, last_step INTEGER, steps TEXT, origin TEXT, parameters TEXT
    )""",
    """CREATE TABLE event (
        id INTEGER PRIMARY KEY, step INTEGER, time REAL, kind TEXT NOT NULL, message TEXT,
        details TEXT
    )""",
)


Number = float | int | None


def call_rows(sample: StepSample) -> Iterator[tuple[int | str | Number, ...]]:
    """Yield the rows of the table ``call``."""
    for call in sample.report.calls:
        yield sample.step, sample.model, call.name, call.call, call.type, *_of_call(call)


def transformer_rows(sample: StepSample) -> Iterator[tuple[int | str, ...]]:
    """Yield the rows of the table ``transformer``."""
    for kind in PROBES:
        for one in getattr(sample.report, kind):
            figures = to_line(figures_of(kind, one))
            yield sample.step, sample.model, kind, one.name, one.call, one.part, figures


def parameter_rows(sample: StepSample) -> Iterator[tuple[int | str | Number, ...]]:
    """Yield the rows of the table ``parameter``."""
    for one in sample.report.parameters:
        yield sample.step, sample.model, one.name, *_of_parameter(one, sample.clipped)


def joined(parts: Sequence[TensorStats], shape: tuple[int, ...]) -> TensorStats:
    """Return the statistics of several tensors as of one tensor of that shape."""
    if len(parts) == 1:
        return replace(parts[0], shape=shape)
    mean, std = _moments(parts)
    return TensorStats(
        *(shape, parts[0].dtype, sum(part.numel for part in parts), _norm(parts), mean, std),
        min=_extreme(min, [part.min for part in parts]),
        max=_extreme(max, [part.max for part in parts]),
        zeros=_count([part.zeros for part in parts]),
        nan=_count([part.nan for part in parts]),
        inf=_count([part.inf for part in parts]),
    )


def _count(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _of_call(call: ModuleCall) -> tuple[Number, ...]:
    outputs = [output.activation for output in call.outputs]
    grad_out = [output.gradient for output in call.outputs if output.gradient is not None]
    grad_in = [given.gradient for given in call.inputs if given.gradient is not None]
    return (
        _norm(outputs),
        *_moments(outputs),
        _extreme(min, [stats.min for stats in outputs]),
        _extreme(max, [stats.max for stats in outputs]),
        _zeros(outputs),
        _nonfinite(outputs),
        _norm(grad_out),
        _nonfinite(grad_out),
        _norm(grad_in),
        _nonfinite(grad_in),
    )


def _of_parameter(one: ParameterStats, clipped: dict[str, float | None]) -> tuple[Number, ...]:
    gradient = [] if one.gradient is None else [one.gradient]
    norm = _norm(gradient)
    both = [one.value, *gradient]
    return (
        _norm([one.value]),
        norm,
        finite_or_none(clipped.get(one.name, norm)),
        finite_or_none(one.update_norm),
        finite_or_none(one.update_ratio),
        _zeros(gradient),
        _nonfinite(both),
        *(finite_or_none(getattr(one, name)) for name in OF_UPDATE),
    )


def _norm(tensors: Sequence[TensorStats]) -> float | None:
    norms = [stats.norm for stats in tensors if stats.norm is not None]
    if not norms:
        return None
    # `hypot` of one number is that number, and of several it does not overflow.
    return finite_or_none(math.hypot(*norms))


def _moments(tensors: Sequence[TensorStats]) -> tuple[Number, Number]:
    """Return the mean and the standard deviation over the finite elements of all."""
    if len(tensors) == 1:
        return finite_or_none(tensors[0].mean), finite_or_none(tensors[0].std)
    known = [
        (stats.numel - (stats.nan or 0) - (stats.inf or 0), stats.mean, stats.std)
        for stats in tensors
        if stats.mean is not None and stats.std is not None
    ]
    total = sum(count for count, _, _ in known)
    if not total:
        return None, None
    mean = sum(count * mean for count, mean, _ in known) / total
    spread = sum(count * (std * std + (one - mean) ** 2) for count, one, std in known) / total
    return finite_or_none(mean), finite_or_none(math.sqrt(spread))


def _extreme(
    choose: Callable[[list[float]], float], values: Iterable[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    return finite_or_none(choose(known)) if known else None


def _zeros(tensors: Sequence[TensorStats]) -> float | None:
    known = [(stats.zeros, stats.numel) for stats in tensors if stats.zeros is not None]
    elements = sum(numel for _, numel in known)
    return sum(zeros for zeros, _ in known) / elements if elements else None


def _nonfinite(tensors: Sequence[TensorStats]) -> int | None:
    known = [
        stats.nan + stats.inf
        for stats in tensors
        if stats.nan is not None and stats.inf is not None
    ]
    return sum(known) if known else None


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
    *("norms", "own_seconds", "batch", "summed", "update_rms", "parts"),
)
_NUMBER, _WORDS = {float, type(None)}, {str, type(None)}
_STEP_TYPES: tuple[set[Any], ...] = (
    *({int}, {str}, {int}, {float}, {float}, _NUMBER, _WORDS, _WORDS),
    *(_NUMBER, _NUMBER, _NUMBER, _WORDS, _NUMBER, {int}, _WORDS),
    *(_NUMBER, {int, type(None)}, _WORDS, _NUMBER, _WORDS),
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
        None if record.parts is None else to_line(record.parts),
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
                parts=None if row[19] is None else _read(GradientParts, row[19], file),
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


#: The key of a part of a transformer: the model's id, the module, its call, the part within the
#: call.
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
