"""Checks several models in turn: collects their findings, and the errors of models that failed.

A baseline is a file of findings that a project accepts: they are shown as known and fail no build.
An entry is a model, a code, a name and a cause; figures differ from run to run and are left out. A
model with a config file is named by the path from the baseline's folder, so the baseline works from
every working directory.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from gradscope import progress
from gradscope.commands import _completing as completing
from gradscope.commands._findings import RuleOptions
from gradscope.commands._model import given_options, importing_torch, split_words
from gradscope.commands._options import (
    RULES,
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    ModelOptions,
    argument,
    flag,
    option,
    takes_groups,
)
from gradscope.commands._running import keep_stdout_clean, running
from gradscope.commands._views import ReportOutput
from gradscope.commands._write import STDOUT, check_output, say, write_output
from gradscope.config import loaded_config as configs
from gradscope.config.schema import Config
from gradscope.config.yaml12 import is_file
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    Interrupted,
    ModelError,
    OptionError,
    Place,
    Problem,
    did_you_mean,
    interruption,
)
from gradscope.output_files import check_readable
from gradscope.records.report import BaselineEntry, CheckedModel, CheckReport, Finding, Report
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.reporters.finding_lines import without_figures
from gradscope.rules import RuleSettings, reaches
from gradscope.typeset.numbers import plural


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
        codes = {entry.rule.code for each in settings for entry, _ in each.active() if entry.find}
        return CheckReport(
            status=_status(self.models),
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
            # The interrupted model counts as unchecked if it has nothing to show.
            begun = len(checked.models) == number
            checked.unchecked = [other.label for other in wanted[number if begun else number - 1 :]]
            break
        # Reference cycles are freed now, because the next model may need the memory.
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
        run = _run_of(config.config, config.name, config.file)
        data = config.config.model_dump(mode="json")
        record = _record(error, "construction")
        checked.models.append(CheckedModel("failed", run, data, error=record))
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
    # An argument of the command line has no line for an annotation.
    in_file = place is not None and place.line is not None and Path(place.file).is_file()
    return ErrorRecord(
        kind="config-error",
        message=first.message + (f" (and {more} more)" if more else ""),
        phase=phase,
        location=f"{place.file}:{place.line}" if place and in_file else None,
        advice=first.help,
    )


SCHEMA = "gradscope.baseline/1"
_HELP = "`gradscope check … --write-baseline FILE` writes one"
_FIELDS = ("model", "code", "name", "cause")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entries of a baseline file."""

    path: Path
    entries: frozenset[BaselineEntry]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        OptionError: the file does not exist, or cannot be read. ConfigError: it is no baseline, or
            of another version.
    """
    try:
        check_readable(path)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise OptionError(f"there is no baseline `{path}`", help=_HELP) from None
    except UnicodeDecodeError:
        raise _bad(path, "it is not UTF-8 text") from None
    except OSError as error:
        message = f"cannot read the baseline `{path}`: {error.strerror or error}"
        raise OptionError(message, help=_HELP) from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON: {error}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or not schema.startswith("gradscope."):
        raise _bad(path, f"it has no `schema`, expected `{SCHEMA}`")
    if schema != SCHEMA:
        ours = schema.startswith("gradscope.baseline/")
        reason = "it is of another version" if ours else "it is another of gradscope's files"
        raise _bad(path, f"{reason}: its schema is `{schema}`, expected `{SCHEMA}`")
    entries = data.get("findings")
    if not isinstance(entries, list):
        raise _bad(path, "its `findings` are not a list")
    read = [_entry(entry, number, path) for number, entry in enumerate(entries)]
    return Baseline(path, frozenset(read))


def known_aside(check: CheckReport, baseline: Baseline, codes: Collection[str]) -> CheckReport:
    """Return the check with the known findings separated, and the entries without a finding.

    An entry is stale only if its model ran to its end and its rule, one of ``codes``, ran.
    """
    models: list[CheckedModel] = []
    matched: set[BaselineEntry] = set()
    completed: set[str] = set()
    for model in check.models:
        known = {f: _identity(f, model.run, baseline.path) for f in model.findings}
        known = {finding: entry for finding, entry in known.items() if entry in baseline.entries}
        matched.update(known.values())
        if model.error is None:
            completed.add(_model_name(model.run, baseline.path))
        models.append(_split(model, known))
    stale = [e for e in baseline.entries - matched if e.model in completed and e.code in codes]
    return replace(
        check,
        status=_status(models),
        models=tuple(models),
        baseline=str(baseline.path),
        stale=tuple(sorted(stale, key=_order)),
    )


def check_baseline_output(path: Path, *, output: Path | None, force: bool) -> None:
    """Refuse a baseline that cannot be written, before anything runs.

    Raises:
        OptionError: the file exists, or cannot be written.
    """
    if path == STDOUT:
        raise OptionError("a baseline needs a file", help="`--write-baseline baseline.json`")
    if output is not None and os.path.realpath(output) == os.path.realpath(path):
        raise OptionError(f"`-o` and `--write-baseline` both name `{path}`", help="give two files")
    check_output(path, force=force)


def write_baseline(path: Path, models: Sequence[CheckedModel], *, force: bool) -> int:
    """Write every finding of the models, also known ones; return the number of entries.

    Raises:
        OptionError: the file exists, or cannot be written.
    """
    entries = {_identity(f, m.run, path) for m in models for f in (*m.findings, *m.known)}
    lines = [
        json.dumps({name: getattr(entry, name) for name in _FIELDS}, ensure_ascii=False)
        for entry in sorted(entries, key=_order)
    ]
    # One line per entry, so that a version control's diff shows which finding is new or gone.
    body = "".join(f"\n  {line}," for line in lines).removesuffix(",")
    text = f'{{\n "schema": "{SCHEMA}",\n "findings": [{body}\n ]\n}}\n'
    write_output(text, path, force=force)
    return len(entries)


def _identity(finding: Finding, run: RunInfo, path: Path) -> BaselineEntry:
    cause = without_figures(finding.cause)
    return BaselineEntry(_model_name(run, path), finding.code, finding.name, cause)


def _model_name(run: RunInfo, path: Path) -> str:
    """Return a config as its path from the baseline's folder; a spec is unchanged."""
    if run.file is None or PurePath(run.file).name != run.model:
        return run.model
    folder = Path(os.path.realpath(path)).parent
    try:
        return PurePath(os.path.relpath(os.path.realpath(run.file), folder)).as_posix()
    except ValueError:  # on another drive
        return PurePath(run.file).as_posix()


def _split(model: CheckedModel, known: Collection[Finding]) -> CheckedModel:
    counting = tuple(finding for finding in model.findings if finding not in known)
    status = "ok" if model.status == "findings" and not counting else model.status
    aside = tuple(finding for finding in model.findings if finding in known)
    return replace(model, status=status, findings=counting, known=aside)


def _status(models: Sequence[CheckedModel]) -> str:
    found = {model.status for model in models}
    return next((status for status in ("failed", "findings") if status in found), "ok")


def _entry(data: Any, number: int, path: Path) -> BaselineEntry:
    where = f"findings[{number}]"
    if not isinstance(data, dict):
        raise _bad(path, f"`{where}` is not a mapping")
    for name in data:
        if name not in _FIELDS:
            raise _bad(path, f"`{where}` has a `{name}`", did_you_mean(str(name), _FIELDS))
    values: dict[str, Any] = {name: data.get(name) for name in _FIELDS}
    for name, value in values.items():
        if not isinstance(value, str) and not (name == "cause" and value is None):
            fault = (
                f"`{where}.{name}` is not a string" if name in data else f"`{where}` lacks `{name}`"
            )
            raise _bad(path, fault)
    return BaselineEntry(**values)


def _order(entry: BaselineEntry) -> tuple[str, ...]:
    return (entry.model, entry.code, entry.name, entry.cause or "")


def _bad(path: Path, reason: str, help: str | None = None) -> ConfigError:
    return ConfigError(f"not a baseline: {reason}", place=Place(str(path)), help=help or _HELP)


#: Formats that show a person all of a failure.
_TEXTS = ("terminal", "markdown")

Models = Annotated[
    list[str] | None,
    argument(
        "MODEL|KEY=VALUE",
        "YAML configs and specs (default: `demo`), and config keys to override in all.",
        complete=completing.models,
    ),
]

EXAMPLES = (
    ("gradscope check configs/*.yaml", "All configs, as in CI: exit code 1 on an error."),
    ("gradscope check model.yaml --write-baseline known.json", "Accept today's findings."),
    ("gradscope check model.yaml --baseline known.json", "Count new findings only."),
    ("gradscope check model.yaml --select GS1,GS3 -f sarif", "Gradients and numbers only."),
)


@takes_groups
def run(
    words: Models = None,
    *,
    model: ModelOptions,
    rules: RuleOptions,
    baseline: Annotated[
        Path | None,
        option("FILE", "Do not count the findings in this file.", panel=RULES),
    ] = None,
    write_to: Annotated[
        Path | None,
        option(
            "FILE",
            "Write all findings to this file, as known ones.",
            "--write-baseline",
            panel=RULES,
        ),
    ] = None,
    precision: Annotated[
        bool,
        flag(
            "--precision",
            "Also forecast what float16, bfloat16 and float8 would lose, layer by layer.",
        ),
    ] = False,
    layers: LayerOptions,
    steps: Annotated[
        int | None, option("N", "Optimizer steps; the rules judge the last one.")
    ] = None,
    format: Format = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Report the problems of models, and nothing else: for CI.

    Each model runs forward and backward as its config says, and the rules judge it. Exit code 1: a
    finding of the severity --fail-on or worse (default: error); 2: a config is wrong; 3: a model
    raised.
    """
    rules.check()
    output = ReportOutput.of(format, file, display)
    if write_to is not None:
        check_baseline_output(write_to, output=file.path, force=file.force)
    wanted = candidates(words, model.settings, {"steps": steps, **model.keys}, rules)
    judging = [one.rules for one in wanted]
    known = None if baseline is None else read_baseline(baseline)
    # All checks without torch are done: from here on models run.
    options = CheckOptions(
        layers=tuple(layers.layers or ("**",)),
        exclude=tuple(layers.exclude or ()),
        rules=rules,
        precision=precision,
        allow=tuple(model.allow or ()),
        debug=display.debug,
    )
    with running(model.timeout):
        checked = check_all(wanted, options)
    on_screen = file.path is None and output.destination.format in _TEXTS
    stopped = checked.stopped(reported=on_screen and checked.ran)
    report = checked.report(judging)
    if known is not None:
        report = known_aside(report, known, report.rules)
    if checked.ran:
        output.write(report)
    if write_to is not None:
        if stopped is not None:
            say(f"`{write_to}` was not written: a model did not run to its end")
        else:
            entries = plural(write_baseline(write_to, report.models, force=file.force), "finding")
            say(f"{entries} written; `--baseline {write_to}` ignores them")
    if stopped is not None:
        raise stopped
    pairs = zip(report.models, judging, strict=True)
    if write_to is None and any(reaches(m.findings, r.fail_on or "error") for m, r in pairs):
        raise typer.Exit(1)
