"""The tables of a run file, as docs/run-file.md describes them, and a sample as rows of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradscope.records.data import to_line
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.tensors import TensorStats, finite_or_none
from gradscope.records.training import StepSample
from gradscope.records.transformer import PROBES, figures_of

#: Schema in the table ``run``, equal to the number in ``PRAGMA user_version``.
SCHEMA: Final = "gradscope.run/2"
VERSION: Final = 2
#: Columns that version 1 called otherwise: new name → old name.
OLD_COLUMNS: Final = {"sampled_seconds": "watched"}
#: ``PRAGMA application_id``: it separates a run from another program's file, whatever its tables.
APPLICATION: Final = int.from_bytes(b"grad")

#: Number of rows of step metrics and of events; half are the latest, without omissions.
MOST_STEPS: Final = 200_000
MOST_EVENTS: Final = 10_000
#: Of norms of parameters, bytes; and how many rows of the same parameters stay in any case.
MOST_NORM_BYTES: Final = 32 << 20
LEAST_NORMS: Final = 256
#: Of samples, by default, and the least that thinning leaves something of.
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
        norms TEXT, own_seconds REAL, batch INTEGER, summed TEXT, update_rms REAL
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
