"""One number for a model in the files of all ranks.

Each process numbers the models as it finds them. One that a rank alone has, as an average of the
weights that rank 0 keeps, shifts those that come after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from gradscope.records.training import TrainedModel

#: The tables that name a model, and the column.
_COLUMNS = {
    "model": "id",
    **dict.fromkeys(
        ("sample", "call", "parameter", "norm_names", "placement", "fingerprint", "finding"),
        "model",
    ),
}
#: Of these the order of the rows is that of the network.
_ORDERED = ("call", "parameter")


def shared_numbers(models: Sequence[TrainedModel], known: Sequence[TrainedModel]) -> dict[int, int]:
    """By its own number of each model, the one that ``known`` has for it.

    The same model has the same class and wrapper, and the same name, or else the same size and
    place in the order. Another keeps its number where that is free, and has a new one where it is
    not.
    """
    left = list(known)
    numbers: dict[int, int] = {}
    for alike in (_named, _sized):
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


def _made(model: TrainedModel) -> tuple[object, ...]:
    return model.type, model.wrapper, model.stage


def _named(model: TrainedModel) -> tuple[object, ...]:
    return model.name, *_made(model)


def _sized(model: TrainedModel) -> tuple[object, ...]:
    return model.parameters, *_made(model)


def renumber(connection: sqlite3.Connection, numbers: Mapping[int, int]) -> None:
    """Whatever is asked of the file from now on has these numbers; the file stays as it is."""
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
        # What is temporary comes before what is in the file.
        connection.execute(
            f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)} FROM main.{table}"
        )
