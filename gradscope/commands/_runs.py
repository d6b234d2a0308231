"""A run's file or folder, told from a report's and read into what the reporters take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gradscope.files import is_stream
from gradscope.records.history import LayerSeries, RunHistory
from gradscope.records.training import StepSample
from gradscope.runfile.reader import RunFile, Series

_MAGIC = b"SQLite format 3\x00"


def is_run(path: Path) -> bool:
    """Whether a word on the command line means a run: ``….db``, a database, or a folder of them."""
    if path.suffix.lower() == ".db":
        return True
    try:
        if path.is_dir():
            return any(path.glob("*.db"))
        if is_stream(path):
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):  # no name that a file can have
        return False


def read_history(
    run: RunFile, *, calls: bool = False, before: RunHistory | None = None
) -> RunHistory:
    """All that a page about a run is made of; ``calls`` asks for the series of calls too.

    ``before`` is what was read of the same run earlier: what cannot have changed is not read again.

    Raises:
        ConfigError: the file is damaged.
    """
    ranks, sampled = run.runs, run.sampled
    known = before.steps if before else ()
    now = RunHistory(
        run=ranks[0],
        models=run.models,
        steps=(*known, *run.steps(known[-1].step + 1 if known else 1)),
        sampled=sampled,
        events=run.events,
        findings=run.findings,
        ranks=ranks if len(ranks) > 1 else (),
        age=age(run.path) if ranks[0].ended is None else None,
    )
    if before is not None and before.sampled == sampled:
        return replace(now, parameters=before.parameters, calls=before.calls)
    parameters = run.parameter_series()
    of_calls = run.call_series() if calls else {}
    samples = _last_samples(run, [*parameters, *of_calls], [*parameters.values()])
    return replace(
        now,
        parameters=tuple(_parameters(parameters, samples)),
        calls=tuple(_calls(of_calls, samples)),
    )


def age(path: Path) -> float | None:
    """How many seconds ago something was written; None where nobody knows."""
    moments = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            moments.append(file.stat().st_mtime)
    return max(0.0, time.time() - max(moments)) if moments else None


def _last_samples(
    run: RunFile, keys: Iterable[tuple[int, *tuple[object, ...]]], series: Iterable[Series]
) -> dict[int, StepSample]:
    """The last sample of each model: what its layers are does not stand in the series."""
    last: dict[int, int] = {}
    for (model, *_), one in zip(keys, series, strict=False):
        last[model] = max(last.get(model, 0), one.steps[-1])
    found = {}
    for model, step in last.items():
        for sample in run.sample(step, model):
            found[model] = sample
    return found


def _parameters(
    series: Mapping[tuple[int, str], Series], samples: Mapping[int, StepSample]
) -> Iterable[LayerSeries]:
    shapes = {
        (model, one.name): one.shape
        for model, sample in samples.items()
        for one in sample.report.parameters
    }
    types = _types(samples)
    for (model, name), one in series.items():
        yield LayerSeries(
            *(name, one.steps, one.values, model),
            shape=shapes.get((model, name), ()),
            types=types.get((model, name.rpartition(".")[0]), ()),
        )


def _calls(
    series: Mapping[tuple[int, str, int], Series], samples: Mapping[int, StepSample]
) -> Iterable[LayerSeries]:
    types = _types(samples)
    for (model, name, call), one in series.items():
        yield LayerSeries(
            name, one.steps, one.values, model, call, types=types.get((model, name), ())
        )


def _types(samples: Mapping[int, StepSample]) -> dict[tuple[int, str], tuple[str, ...]]:
    """The classes of each module, nearest first."""
    found: dict[tuple[int, str], tuple[str, ...]] = {}
    for model, sample in samples.items():
        for call in sample.report.calls:
            found[model, call.name] = (call.type,)
        for module in sample.report.modules:
            found[model, module.name] = tuple(dict.fromkeys((module.type, *module.kinds)))
    return found
