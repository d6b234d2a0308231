"""Checks several models in turn: collects their findings, and the errors of models that failed."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradscope import progress
from gradscope.commands._findings import RuleOptions
from gradscope.commands._model import given_options, importing_torch, split_words
from gradscope.commands._running import keep_stdout_clean
from gradscope.config import reading as configs
from gradscope.config.schema import Config
from gradscope.config.yaml12 import is_file
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Interrupted,
    ModelError,
    Problem,
    interruption,
)
from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.rules import RuleSettings


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Settings for the check of each model."""

    layers: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    rules: RuleOptions = field(default_factory=RuleOptions)
    precision: bool = False
    allow: tuple[str, ...] = ()
    debug: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to check: its config and its rules, or their errors."""

    name: str  # as the command line has it
    rules: RuleSettings
    loaded: configs.LoadedConfig | None = None
    error: ConfigError | None = None

    @property
    def label(self) -> str:
        """Name of the model in messages: its file, if it has one."""
        return _label(self.loaded) if self.loaded else self.name


@dataclass(slots=True)
class Checked:
    """Results so far.

    ``raised`` has the errors of models, ``wrong`` those of configs. ``brief`` has a short line for
    each error in ``raised``, used if the reader has the report.
    """

    models: list[CheckedModel] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    raised: list[Problem] = field(default_factory=list)
    brief: list[Problem] = field(default_factory=list)
    wrong: list[Problem] = field(default_factory=list)
    interrupted: str | None = None  # why
    unchecked: list[str] = field(default_factory=list)  # models that were not reached

    @property
    def ran(self) -> bool:
        """True if there is a result to show: a model ran, or began to run."""
        return any(m.error is None or m.error.kind != "config-error" for m in self.models)

    def report(self, settings: Sequence[RuleSettings]) -> CheckReport:
        """Return everything as one record; ``settings`` are the rules that ran."""
        statuses = {model.status for model in self.models}
        worst = next((status for status in ("failed", "findings") if status in statuses), "ok")
        codes = {entry.rule.code for each in settings for entry, _ in each.active() if entry.find}
        return CheckReport(
            status=worst,
            versions=self.versions,
            rules=tuple(sorted(codes)),
            models=tuple(self.models),
        )

    def stopped(self, *, reported: bool = False) -> GradscopeError | None:
        """Return the error with which the command ends, None without one.

        With ``reported``, the errors of models are brief, because the reader has the report.
        """
        if self.interrupted is not None:
            names = ", ".join(f"`{name}`" for name in self.unchecked)
            rest = f"; not checked: {names}" if names else ""
            return Interrupted(self.interrupted, f"the findings so far are shown{rest}")
        raised = self.brief if reported else self.raised
        if self.wrong:
            return ConfigError(*self.wrong, *raised)
        return ModelError(*raised) if raised else None


def candidates(
    words: list[str] | None,
    settings: list[str] | None,
    options: dict[str, Any],
    rules: RuleOptions,
) -> list[Candidate]:
    """Read all MODELs, each with all overrides and options; one that cannot be read does not stop
    the others.

    Raises:
        ConfigError: no MODEL can be read; the error has the problems of all.
    """
    models, overrides = split_words(words)
    overrides += settings or []
    found: list[Candidate] = []
    problems: list[Problem] = []
    wanted: list[str | None] = [*models] or [None]
    for model in wanted:
        try:
            loaded = configs.read(model, overrides, options=given_options(options))
            found.append(Candidate(loaded.name, rules.settings(loaded), loaded))
        except ConfigError as error:
            found.append(Candidate(model or "demo", rules.settings(None), error=error))
            # A mistake in an override concerns each of the models.
            problems += [problem for problem in error.problems if problem not in problems]
    if all(one.error is not None for one in found):
        raise ConfigError(*problems)
    return found


def check_all(wanted: Sequence[Candidate], options: CheckOptions) -> Checked:
    """Check each model; one that fails does not stop the others."""
    checked = Checked()
    for number, one in enumerate(wanted, start=1):
        if one.loaded is None:
            _unread(one, checked)
            continue
        which = f" ({number} of {len(wanted)})" if len(wanted) > 1 else ""
        try:
            with progress.within(f"{one.name}{which}"):
                _check(one.loaded, options, checked)
        except KeyboardInterrupt as error:
            checked.interrupted = interruption(error)
        if checked.interrupted is not None:
            # The one that was running is among them where it came to nothing that can be shown.
            begun = len(checked.models) == number
            checked.unchecked = [other.label for other in wanted[number if begun else number - 1 :]]
            break
        # The next model may need the memory: what refers to itself goes now.
        gc.collect()
    return checked


def _unread(one: Candidate, checked: Checked) -> None:
    """Note a model whose config has mistakes, so that nothing could run."""
    assert one.error is not None
    checked.wrong += [p for p in one.error.problems if p not in checked.wrong]
    file = os.path.normpath(one.name) if is_file(one.name) else None
    run = _run_of(Config(model=one.name), Path(one.name).name if file else one.name, file)
    checked.models.append(CheckedModel("failed", run, error=_record(one.error, "config")))


def _check(config: configs.LoadedConfig, options: CheckOptions, checked: Checked) -> None:
    try:
        with keep_stdout_clean():
            with importing_torch():
                from gradscope.api.inspecting import check
            report = check(
                config,
                layers=options.layers,
                exclude=options.exclude,
                precision=options.precision,
                allow=options.allow,
                **options.rules.chosen,
            )
    except (ModelError, Interrupted) as error:
        _show(error, options)
        if isinstance(error, Interrupted):
            checked.interrupted = error.reason
        else:
            checked.raised += _of(config, error)
            checked.brief += _briefly(config, error)
        if not isinstance(error.report, Report):
            return
        report = error.report
    except GradscopeError as error:
        _show(error, options)
        checked.wrong += _of(config, error)
        checked.models.append(_unloaded(config, error))
        return
    checked.versions = checked.versions | report.versions
    checked.models.append(_model(report, options))


def _show(error: GradscopeError, options: CheckOptions) -> None:
    """Print the traceback now, if requested: a stored traceback would keep the model's tensors
    alive."""
    if options.debug:
        traceback.print_exception(error)


def _of(loaded: configs.LoadedConfig, error: GradscopeError) -> list[Problem]:
    """Return the problems with their model's name added, because standard error does not show it
    otherwise."""
    note = f"of the model {_label(loaded)}"
    return [replace(problem, notes=(note, *problem.notes)) for problem in error.problems]


def _briefly(loaded: configs.LoadedConfig, error: ModelError | Interrupted) -> list[Problem]:
    """Return the model and place that raised; the full error if no report has it."""
    record = error.report.error if isinstance(error.report, Report) else None
    if record is None:
        return _of(loaded, error)
    where = f" in `{record.name}`" if record.name else ""
    return [Problem(f"{_label(loaded)}: {record.phase} raised{where}")]


def _label(loaded: configs.LoadedConfig) -> str:
    return loaded.file or loaded.name


def _model(report: Report, options: CheckOptions) -> CheckedModel:
    return CheckedModel(
        status=report.status,
        run=report.run,
        config=report.config,
        findings=report.findings,
        error=report.error,
        answers=report.answers,
        non_finite=report.non_finite,
        precision=report.precision if options.precision else (),
    )


def _unloaded(loaded: configs.LoadedConfig, error: GradscopeError) -> CheckedModel:
    """Note a model whose config could not be loaded; the others are still checked."""
    run = _run_of(loaded.config, loaded.name, loaded.file)
    data = loaded.config.model_dump(mode="json")
    return CheckedModel("failed", run, data, error=_record(error, "construction"))


def _run_of(config: Config, name: str, file: str | None) -> RunInfo:
    """Return the settings with which the model would have run."""
    return RunInfo(
        model=name,
        device=config.device,
        dtype=config.dtype,
        mode=config.mode,
        seed=config.seed,
        steps=config.steps,
        loss="",
        file=file,
    )


def _record(error: GradscopeError, phase: str) -> ErrorRecord:
    """Return the first problem, and the number of further ones."""
    first, more = error.problems[0], len(error.problems) - 1
    place = first.place
    # An argument has no line that an annotation could be at.
    in_file = place is not None and place.line is not None and Path(place.file).is_file()
    return ErrorRecord(
        kind="config-error",
        message=first.message + (f" (and {more} more)" if more else ""),
        phase=phase,
        location=f"{place.file}:{place.line}" if place and in_file else None,
        advice=first.help,
    )
