"""``gradscope check``: findings only, for many models, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._baseline import (
    check_baseline_output,
    known_aside,
    read_baseline,
    write_baseline,
)
from gradscope.commands._checking import CheckOptions, candidates, check_all
from gradscope.commands._findings import RuleOptions
from gradscope.commands._options import (
    RULES,
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    ModelOptions,
    takes_groups,
)
from gradscope.commands._progress import shown_progress
from gradscope.commands._time_limit import time_limit
from gradscope.commands._views import ReportOutput
from gradscope.commands._write import keep_stdout_clean, say
from gradscope.rules import reaches
from gradscope.typeset.numbers import plural

#: Formats that show a person all of a failure.
_TEXTS = ("terminal", "markdown")

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL|KEY=VALUE",
        help="YAML configs and specs (default: `demo`), and config keys to override in all.",
        show_default=False,
        autocompletion=completing.models,
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
        typer.Option(
            metavar="FILE",
            help="Do not count the findings in this file.",
            rich_help_panel=RULES,
        ),
    ] = None,
    write_to: Annotated[
        Path | None,
        typer.Option(
            "--write-baseline",
            metavar="FILE",
            help="Write all findings to this file, as known ones.",
            rich_help_panel=RULES,
        ),
    ] = None,
    precision: Annotated[
        bool,
        typer.Option(
            "--precision",
            help="Also forecast what float16, bfloat16 and float8 would lose, layer by layer.",
        ),
    ] = False,
    layers: LayerOptions,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Optimizer steps; the rules judge the last one.")
    ] = None,
    format: Format = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Report what is wrong with models, and nothing else: for CI.

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
        precision=precision,
        allow=tuple(model.allow or ()),
        debug=display.debug,
    )
    with keep_stdout_clean(), shown_progress(), time_limit(model.timeout):
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
