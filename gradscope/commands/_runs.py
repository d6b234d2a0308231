"""A run's file or folder, read into what the reporters take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradscope.records.history import LayerSeries, RunHistory
from gradscope.records.training import StepSample, TrainingFinding
from gradscope.rules import RuleSettings, diagnose_ranks
from gradscope.runfile.ranks import compare_ranks
from gradscope.runfile.reader import RunFile, Series


def read_history(
    run: RunFile, *, calls: bool = False, before: RunHistory | None = None
) -> RunHistory:
    """All that a page about a run is made of; ``calls`` asks for the series of calls too.

    ``before`` is what was read of the same run earlier: what cannot have changed is not read again.

    Raises:
        ConfigError: the file is damaged.
    """
    ranks, sampled = run.runs, run.sampled
    alone = len(run.files) == 1
    known = before.steps if before else ()
    while not alone and known and not known[-1].losses:  # another rank had not come to it
        known = known[:-1]
    now = RunHistory(
        run=ranks[0],
        models=run.models,
        steps=(*known, *run.steps(known[-1].step + 1 if known else 1)),
        sampled=sampled,
        events=run.events,
        findings=(*_between_ranks(run), *run.findings),
        ranks=ranks if len(ranks) > 1 else (),
        age=age(run.path) if ranks[0].ended is None else None,
    )
    if before is not None and before.sampled == sampled and alone:
        return replace(now, parameters=before.parameters, calls=before.calls)
    parameters = run.parameter_series()
    of_calls = run.call_series() if calls else {}
    layers = _layers(run, parameters)
    return replace(
        now,
        parameters=tuple(_parameters(parameters, layers)),
        calls=tuple(_calls(of_calls, layers)),
    )


def _between_ranks(run: RunFile) -> tuple[TrainingFinding, ...]:
    """What only many ranks can show, by the rules that the run itself was told to take."""
    if len(run.files) < 2:
        return ()
    chosen = run.run.options.get("rules", {})
    settings = RuleSettings.of(select=chosen.get("select", ()), ignore=chosen.get("ignore", ()))
    return diagnose_ranks(compare_ranks(run.files), settings)


def age(path: Path) -> float | None:
    """How many seconds ago something was written; None where nobody knows."""
    moments = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            moments.append(file.stat().st_mtime)
    return max(0.0, time.time() - max(moments)) if moments else None


@dataclass(slots=True)
class _Layers:
    """What layers are does not stand in their series: shapes of parameters, classes of modules."""

    shapes: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    types: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)

    def add(self, sample: StepSample) -> None:
        """Take in what one process had; what is known already stays."""
        model = sample.model
        for parameter in sample.report.parameters:
            self.shapes.setdefault((model, parameter.name), parameter.shape)
        known: dict[str, tuple[str, ...]] = {}
        known.update({one.name: (one.type,) for one in sample.report.calls})
        for module in sample.report.modules:
            known[module.name] = tuple(dict.fromkeys((module.type, *module.kinds)))
        for name, types in known.items():
            self.types.setdefault((model, name), types)


def _layers(run: RunFile, parameters: Mapping[tuple[int, str], Series]) -> _Layers:
    """From the last samples, of no more processes than it takes to know all parameters."""
    last: dict[int, int] = {}
    for (model, _), one in parameters.items():
        last[model] = max(last.get(model, 0), one.steps[-1])
    found = _Layers()
    for file in run.files:
        for model, step in last.items():
            for sample in file.sample(step, model):
                found.add(sample)
        if len(run.files) > 1:  # of a shard the whole's
            found.shapes.update({(one.model, one.name): one.shape for one in file.placements})
        if parameters.keys() <= found.shapes.keys():
            break
    return found


def _parameters(series: Mapping[tuple[int, str], Series], layers: _Layers) -> Iterable[LayerSeries]:
    for (model, name), one in series.items():
        yield LayerSeries(
            *(name, one.steps, one.values, model),
            shape=layers.shapes.get((model, name), ()),
            types=layers.types.get((model, name.rpartition(".")[0]), ()),
            fault=one.fault,
        )


def _calls(series: Mapping[tuple[int, str, int], Series], layers: _Layers) -> Iterable[LayerSeries]:
    for (model, name, call), one in series.items():
        yield LayerSeries(
            *(name, one.steps, one.values, model, call),
            types=layers.types.get((model, name), ()),
            lowest=one.lowest,
            highest=one.highest,
        )
