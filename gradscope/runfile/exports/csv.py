"""The numbers of a run as one table: a row for each step, and for each layer in each sample."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gradscope.records.tensors import merged_table
from gradscope.runfile import schema
from gradscope.runfile.reader import RunFile, Series
from gradscope.typeset.text import csv_field

Cell = str | float | int | None

TEXTS: Final = ("table", "model", "name", "nonfinite_kind")
COUNTS: Final = ("step", "call", "optimizer_step", "backwards", *schema.COUNTS)
_VITAL: Final = (
    *("optimizer_step", "seconds", "loss", "backwards", "nonfinite_kind", "gradient_norm"),
    *("clipped_norm", "learning_rate", "loss_scale", "update_rms"),
)
#: ``table`` says what a row is of: step, call or parameter. A step's ``name`` is its optimizer.
COLUMNS: Final = tuple(
    dict.fromkeys(
        (
            *("table", "step", "time", "model", "name", "call"),
            *(*_VITAL, *schema.CALL_COLUMNS, *schema.PARAMETER_COLUMNS),
        )
    )
)


def rows(run: RunFile) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows, with a cell for each of ``COLUMNS``: steps, then calls, then parameters."""
    times: dict[int, float] = {}
    for one in run.steps():
        times[one.step] = one.time
        rate = one.learning_rates[0] if one.learning_rates else None
        found: dict[str, Cell] = {
            **{"table": "step", "step": one.step, "time": one.time, "name": one.optimizer},
            **{"optimizer_step": one.optimizer_step, "seconds": one.seconds, "loss": one.loss},
            **{"nonfinite_kind": one.nonfinite, "gradient_norm": one.gradient_norm},
            **{"clipped_norm": one.clipped_norm, "learning_rate": rate},
            **{"loss_scale": one.loss_scale, "backwards": len(one.summed_losses)},
            "update_rms": one.update_rms,
        }
        yield tuple(map(found.get, COLUMNS))
    names = model_names(run)
    for (model, name, call), series in run.call_series().items():
        head: dict[str, Cell] = {"table": "call", "name": name, "call": call}
        yield from _of_series({**head, "model": names.get(model)}, series, times)
    for (model, name), series in parameter_series(run):
        head = {"table": "parameter", "name": name}
        yield from _of_series({**head, "model": names.get(model)}, series, times)


def _of_series(
    head: dict[str, Cell], series: Series, times: dict[int, float]
) -> Iterator[tuple[Cell, ...]]:
    for i, step in enumerate(series.steps):
        values = {column: numbers[i] for column, numbers in series.values.items()}
        yield tuple(map({**head, **values, "step": step, "time": times.get(step)}.get, COLUMNS))


def parameter_series(run: RunFile) -> Iterator[tuple[tuple[int, str], Series]]:
    """Yield the parameters over the sampled steps, and over the steps whose gradients were
    read."""
    sampled, read = run.parameter_series(), run.norm_series()
    for key in dict.fromkeys((*sampled, *read)):
        series = sampled.get(key, Series((), {}))
        yield key, Series(*merged_table(series.steps, series.values, read.get(key)))


def model_names(run: RunFile) -> dict[int, str]:
    """Return the name of each model by its id."""
    return {model.id: model.name for model in run.models}


packages = ()
folder = None


def write(run: RunFile, path: Path) -> None:
    """Fill the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(csv_field, row) for row in rows(run))
