"""The tables of a run file, as docs/run-file.md describes them."""

from __future__ import annotations

from typing import Final

#: What the table ``run`` says, and the same as the number in ``PRAGMA user_version``.
SCHEMA: Final = "gradscope.run/2"
VERSION: Final = 2
#: Columns that version 1 called otherwise: new name → old name.
OLD_COLUMNS: Final = {"sampled_seconds": "watched"}
#: ``PRAGMA application_id``: it separates a run from another program's file, whatever its tables.
APPLICATION: Final = int.from_bytes(b"grad")

#: How many rows there are of step metrics and of events; half are the latest, with none left out.
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
)

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
        norms TEXT, own_seconds REAL, batch INTEGER, summed TEXT
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
