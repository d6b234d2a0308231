"""Reads a file: a saved report, check, answers, comparison or graph, or a training run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope.errors import ConfigError, OptionError
from gradscope.output_files import expanded
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.records.diff import DiffReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.report import CheckReport, Report
from gradscope.records.tensors import NormSeries
from gradscope.records.training import LayerSeries, RunHistory, StepSample
from gradscope.records.transformer import PROBES
from gradscope.reporters.header import listed
from gradscope.reporters.run import called
from gradscope.rules import ReadRun, RuleSettings, Seen, diagnose_ranks, judgement
from gradscope.runfile.folder import run_named
from gradscope.runfile.gradient_noise import noise_of_run
from gradscope.runfile.norm_series import Key, combined_later
from gradscope.runfile.ranks import compare_ranks
from gradscope.runfile.reader import RunFile, Series


def read_history(
    run: RunFile,
    *,
    calls: bool = False,
    before: RunHistory | None = None,
    path: Path | None = None,
) -> RunHistory:
    """Read the contents of a page about a run; ``calls`` reads the series of calls too.

    ``before`` is an earlier read of the same run: parts that cannot have changed are not read
    again. ``path`` is the path of the run that commands in findings name; None: its present path.

    Raises:
        ConfigError: the file is damaged.
    """
    ranks, sampled = run.runs, run.sampled
    alone = len(run.files) == 1
    known = before.steps if before else ()
    while not alone and known and not known[-1].losses:  # another rank had not reached this step
        known = known[:-1]
    known = (*known, *run.steps(known[-1].step + 1 if known else 1))
    reader = ReadRun(path or run.source, ranks[0], sampled)
    between_ranks = () if alone else diagnose_ranks(compare_ranks(run.files), _settings(run))
    now = RunHistory(
        run=ranks[0],
        models=run.models,
        steps=known,
        sampled=sampled,
        events=run.events,
        findings=tuple(map(reader.named, (*between_ranks, *run.findings))),
        ranks=ranks if len(ranks) > 1 else (),
        age=age(run.path) if ranks[0].ended is None else None,
        path=run.source,
        noise=noise_of_run(known),
    )
    norms = _norms(run, before if alone else None)
    if before is not None and before.sampled == sampled and alone:
        known_parameters = {(one.model, one.name): one for one in before.parameters}
        parameters = tuple(_with_norms(known_parameters, norms))
        series: dict[str, Any] = {kind: getattr(before, kind) for kind in ("calls", *PROBES)}
    else:
        parameter_series = run.parameter_series()
        of_calls = run.call_series() if calls else {}
        layers = _layers(run, parameter_series)
        of_parameters = dict(_parameters(parameter_series, layers))
        parameters = tuple(_with_norms(of_parameters, norms))
        series = {kind: tuple(run.transformer_series(kind).values()) for kind in PROBES}
        series["calls"] = tuple(_calls(of_calls, layers))
    now = replace(now, parameters=parameters, **series)
    return replace(now, judgement=judgement(_seen(now, _settings(run), ranks=len(run.files) > 1)))


def _settings(run: RunFile) -> RuleSettings:
    """Return the rule settings of the run; all rules if they are unknown."""
    chosen = run.run.options.get("rules")
    found = chosen if isinstance(chosen, dict) else {}
    preset = found.get("preset")
    try:
        return RuleSettings.of(
            select=_words(found.get("select")),
            ignore=_words(found.get("ignore")),
            preset=preset if isinstance(preset, str) else None,
        )
    except OptionError:  # written by another version, with other rules
        return RuleSettings()


def _words(option: object) -> list[str]:
    return [word for word in option if isinstance(word, str)] if isinstance(option, list) else []


def report_of_step(history: RunHistory, step: int | None, model: str | None) -> Report:
    """Return the report of a sampled step for one model; see ``RunHistory.report``.

    Raises:
        OptionError: the step was not sampled, or has no such model.
        ConfigError: the file is gone or damaged.
    """
    number = history.sampled[-1] if step is None and history.sampled else step
    if history.path is None or number not in history.sampled:
        steps = f"the sampled steps are {listed(history.sampled)}" if history.sampled else None
        what = "no step was sampled" if number is None else f"step {number} was not sampled"
        raise OptionError(what, help=steps)
    names = {one.id: called(one) for one in history.models}
    with RunFile.open(history.path) as run:
        found = {names.get(one.model, ""): one.report for one in run.sample(number)}
    if model is not None and model not in found:
        known = ", ".join(f"`{name}`" for name in found)
        raise OptionError(f"step {number} has no model `{model}`", help=f"it has {known}")
    return found[model] if model is not None else next(iter(found.values()))


def _seen(history: RunHistory, settings: RuleSettings, *, ranks: bool) -> Seen:
    """Collect the facts of the run that rules read."""
    probed = bool(history.run.options.get("compiled"))
    seen = Seen(settings, ranks, cut=history.run.cut is not None, probed=probed)
    optimizers = {step.step: step.optimizer for step in history.steps}
    for step in history.steps:
        seen.add_step(step)
    for model in history.models:
        seen.add_model(model)
    sampled = {(step, one.model) for one in history.parameters for step in one.steps}
    having = {
        kind: {(step, one.model) for one in getattr(history, kind) for step in one.steps}
        for kind in PROBES
    }
    for number, of in sampled:
        structures = (kind for kind in PROBES if (number, of) in having[kind])
        seen.add_sample(number, of, optimizers.get(number, ""), structures)
    return seen


def age(path: Path) -> float | None:
    """Return the seconds since the last write; None if unknown."""
    moments = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(OSError):
            moments.append(file.stat().st_mtime)
    return max(0.0, time.time() - max(moments)) if moments else None


@dataclass(slots=True)
class _Layers:
    """Shapes of parameters and classes of modules, for series of layers."""

    shapes: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    types: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)

    def add(self, sample: StepSample) -> None:
        """Add the records of one process; known ones stay."""
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
    """Read layers from the last samples, of as few processes as possible for all parameters."""
    last: dict[int, int] = {}
    for (model, _), one in parameters.items():
        last[model] = max(last.get(model, 0), one.steps[-1])
    found = _Layers()
    for file in run.files:
        for model, step in last.items():
            for sample in file.sample(step, model):
                found.add(sample)
        if len(run.files) > 1:  # of a shard the global one
            found.shapes.update({(one.model, one.name): one.shape for one in file.placements})
        if parameters.keys() <= found.shapes.keys():
            break
    return found


def _norms(run: RunFile, before: RunHistory | None) -> dict[Key, NormSeries]:
    """Read the norms of every parameter; only new norms of known parameters are read."""
    known = {
        (one.model, one.name): one.norms
        for one in (before.parameters if before else ())
        if one.norms is not None
    }
    last = max((one.steps[-1] for one in known.values() if one.steps), default=0)
    return combined_later(known, run.norm_series(last))


def _with_norms(
    parameters: Mapping[Key, LayerSeries], norms: Mapping[Key, NormSeries]
) -> Iterator[LayerSeries]:
    """Yield the parameters with their norms, also those that no sample has."""
    for key, one in parameters.items():
        yield replace(one, norms=norms.get(key))
    for (model, name), found in norms.items():
        if (model, name) not in parameters and found.steps:
            yield LayerSeries(name, (), {}, model, norms=found)


def _parameters(series: Mapping[Key, Series], layers: _Layers) -> Iterator[tuple[Key, LayerSeries]]:
    for (model, name), one in series.items():
        yield (
            (model, name),
            LayerSeries(
                *(name, one.steps, one.values, model),
                shape=layers.shapes.get((model, name), ()),
                types=layers.types.get((model, name.rpartition(".")[0]), ()),
                fault=one.fault,
            ),
        )


def _calls(series: Mapping[tuple[int, str, int], Series], layers: _Layers) -> Iterable[LayerSeries]:
    for (model, name, call), one in series.items():
        yield LayerSeries(
            *(name, one.steps, one.values, model, call),
            types=layers.types.get((model, name), ()),
            lowest=one.lowest,
            highest=one.highest,
        )


Loaded = Report | CheckReport | WhyReport | DiffReport | AutogradGraph | RunHistory


def load(path: str | Path) -> Loaded:
    """Read a file of a command or of ``save`` into its record; nothing runs.

        >>> run = gradscope.load("gradscope-runs/train-20260101-120000.db")
        >>> run.findings[0].code
        >>> run.report(40)["fc.weight"].grad.norm

    Args:
        path: a ``.json`` of ``inspect``, ``check``, ``why``, ``diff`` or ``graph``; or a run, also
            a running one: its file, its folder, or its name, as for ``gradscope show``.

    Returns:
        The record; for a run a ``RunHistory``, with its steps, findings and series of layers.

    Raises:
        ConfigError: the file does not exist, is damaged, or is not a file of gradscope.
    """
    path = expanded(path)
    run = run_named(path)
    if run is not None:
        with RunFile.open(run) as opened:
            return read_history(opened, calls=True)
    if not path.suffix and not path.exists():
        raise ConfigError(
            f"no run and no report is named `{path}`", help="name a file: `gradscope.load('x.db')`"
        )
    return record_json.load_any(path)
