"""A baseline is a file of findings that a project accepts: they are shown as known and fail no
build.

An entry is a model, a code, a name and a cause; figures differ from run to run and are left out. A
model with a config file is named by the path from the baseline's folder, so the baseline works from
every working directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._checking import CheckOptions, candidates, check_all
from gradscope.commands._findings import RuleOptions
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
from gradscope.commands._running import running
from gradscope.commands._views import ReportOutput
from gradscope.commands._write import STDOUT, check_output, say, write_output
from gradscope.errors import ConfigError, OptionError, Place, did_you_mean
from gradscope.output_files import check_readable
from gradscope.records.report import BaselineEntry, CheckedModel, CheckReport, Finding
from gradscope.records.run import RunInfo
from gradscope.reporters.finding_lines import without_figures
from gradscope.rules import reaches
from gradscope.typeset.numbers import plural

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
            completed.add(_model(model.run, baseline.path))
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
    # A line for each: a version control's difference then shows which finding came or went.
    body = "".join(f"\n  {line}," for line in lines).removesuffix(",")
    text = f'{{\n "schema": "{SCHEMA}",\n "findings": [{body}\n ]\n}}\n'
    write_output(text, path, force=force)
    return len(entries)


def _identity(finding: Finding, run: RunInfo, path: Path) -> BaselineEntry:
    cause = without_figures(finding.cause)
    return BaselineEntry(_model(run, path), finding.code, finding.name, cause)


def _model(run: RunInfo, path: Path) -> str:
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
