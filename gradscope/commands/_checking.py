"""One model after the other: what a check of many found, and what stopped some of them."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradscope import config as configs
from gradscope import progress
from gradscope.commands._model import importing_torch
from gradscope.commands._write import keep_stdout_clean
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Interrupted,
    ModelError,
    Problem,
    interruption,
)
from gradscope.records.errors import ErrorRecord
from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.records.run import RunInfo
from gradscope.rules import RuleSettings


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How each of the models is looked at."""

    layers: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    precision: bool = False
    allow: tuple[str, ...] = ()
    debug: bool = False


@dataclass(slots=True)
class Checked:
    """What came of the models so far. ``raised`` are models' own errors, ``wrong`` the configs'.

    ``brief`` says of each in ``raised`` no more than a reader of the report needs.
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
        """Whether there is something to show: a model that ran, or tried to."""
        return any(m.error is None or m.error.kind != "config-error" for m in self.models)

    def report(self, settings: Sequence[RuleSettings]) -> CheckReport:
        """Everything as one record; ``settings`` say which rules looked."""
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
        """The error that the command ends with, if one stopped a model.

        With ``reported`` it is brief on what each model raised: the reader has the report, too.
        """
        if self.interrupted is not None:
            names = ", ".join(f"`{name}`" for name in self.unchecked)
            rest = f"; not looked at: {names}" if names else ""
            return Interrupted(self.interrupted, f"what was found until then is shown{rest}")
        raised = self.brief if reported else self.raised
        if self.wrong:
            return ConfigError(*self.wrong, *raised)
        return ModelError(*raised) if raised else None


def check_all(
    loaded: Sequence[configs.LoadedConfig], settings: Sequence[RuleSettings], options: CheckOptions
) -> Checked:
    """Check each model; one that fails keeps no other from being checked."""
    checked = Checked()
    for number, (config, rules) in enumerate(zip(loaded, settings, strict=True), start=1):
        which = f" ({number} of {len(loaded)})" if len(loaded) > 1 else ""
        try:
            with progress.within(f"{config.name}{which}"):
                _check(config, rules, options, checked)
        except KeyboardInterrupt as error:
            checked.interrupted = interruption(error)
        if checked.interrupted is not None:
            # The one that was running is among them where it came to nothing that can be shown.
            begun = len(checked.models) == number
            checked.unchecked = [_label(one) for one in loaded[number if begun else number - 1 :]]
            break
        # The next model may need the memory: what refers to itself goes now.
        gc.collect()
    return checked


def _check(
    config: configs.LoadedConfig, settings: RuleSettings, options: CheckOptions, checked: Checked
) -> None:
    try:
        with keep_stdout_clean():
            with importing_torch():
                from gradscope.api import check_config
            report = check_config(
                config,
                rules=settings,
                layers=options.layers,
                exclude=options.exclude,
                precision=options.precision,
                allow=options.allow,
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
    """The traceback at once, where it is wanted: kept, it would keep the model's tensors too."""
    if options.debug:
        traceback.print_exception(error)


def _of(loaded: configs.LoadedConfig, error: GradscopeError) -> list[Problem]:
    """The problems with the model that they are of: on standard error they stand without it."""
    note = f"of the model {_label(loaded)}"
    return [replace(problem, notes=(note, *problem.notes)) for problem in error.problems]


def _briefly(loaded: configs.LoadedConfig, error: ModelError | Interrupted) -> list[Problem]:
    """Which model raised, and where; all of it where no report has the rest."""
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
    """A model that its config could not be loaded for: the others are checked all the same."""
    config, first = loaded.config, error.problems[0]
    run = RunInfo(
        model=loaded.name,
        device=config.device,
        dtype=config.dtype,
        mode=config.mode or "train",
        seed=config.seed,
        steps=config.steps,
        loss="",
        file=loaded.file,
    )
    record = ErrorRecord(
        kind="config-error",
        message=first.message,
        phase="construction",
        location=str(first.place) if first.place else None,
        advice=first.help,
    )
    return CheckedModel("failed", run, config.model_dump(mode="json"), error=record)
