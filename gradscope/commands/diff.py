"""``gradscope diff``: two runs compared layer by layer, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

# Typer carries its own copy of click, and exports only some of it.
from typer._click import Context
from typer.core import TyperCommand

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._findings import path_root
from gradscope.commands._model import (
    importing_torch,
    read_model,
    refuse_to_run,
    split_words,
)
from gradscope.commands._options import (
    LAYERS,
    TABLES,
    Allow,
    Debug,
    DisplayOptions,
    FileOptions,
    RunOptions,
    Set,
    format_option,
    takes_groups,
)
from gradscope.commands._progress import shown_progress
from gradscope.commands._views import Destination, choose_destination
from gradscope.commands._write import keep_stdout_clean
from gradscope.config import LoadedConfig
from gradscope.errors import OptionError, did_you_mean
from gradscope.records.diff import DiffReport
from gradscope.records.report import Report
from gradscope.reporters.diff import DiffView
from gradscope.rules import FAIL_ON, reaches

ROOM = "gradscope.reporters.diff"
EXAMPLES = (
    ("gradscope diff model.yaml -- dtype=bfloat16", "A model against itself in bfloat16."),
    ("gradscope diff model.yaml port.yaml --top 10", "A port, and the ten rows farthest off."),
    ("gradscope diff here.json there.json", "Two reports that `inspect --sketch` saved."),
    ("gradscope diff ./net.py:Net ./net.py:Port --match 'encoder.*=layers.*'", "Other names."),
)
#: What `--` becomes among the words; no argument of a process can hold it.
_AND = "\0"
_TABLES = ("calls", "parameters", "findings")


class Parser(TyperCommand):
    """Options may stand anywhere: `--` only parts what A is from what B is."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """With a word in the place of each ``--``."""
        return super().parse_args(ctx, [_AND if word == "--" else word for word in args])


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A [B] [KEY=VALUE…] [-- [B] KEY=VALUE…]",
            help="Two MODELs; or one, and behind `--` the config keys that B has otherwise. Keys "
            "before `--` are A's; without it, both have them. Or two saved reports.",
            show_default=False,
            autocompletion=completing.models,
        ),
    ] = None,
    settings: Set = None,
    *,
    match: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B",
            help="Modules that B calls otherwise: `encoder.*.fc=layers.*.linear`. Repeatable.",
            rich_help_panel=LAYERS,
        ),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="SEVERITY",
            help="Exit with 1 where a finding is as bad as this: error, warning, info or never.",
            autocompletion=completing.one_of(FAIL_ON),
        ),
    ] = "never",
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Only the N rows of each table that are farthest off.",
            min=0,
            rich_help_panel=TABLES,
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Only this table: `calls`, `parameters` or `findings`.",
            autocompletion=completing.one_of(_TABLES),
            rich_help_panel=TABLES,
        ),
    ] = None,
    running: RunOptions,
    format: Annotated[
        str | None,
        format_option(
            "terminal, html, json, csv, markdown, github (annotations) or sarif. Wins over -o's "
            "suffix.",
            ROOM,
        ),
    ] = None,
    file: FileOptions,
    display: DisplayOptions,
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """Compare two models, or one in two ways, on the same weights and the same batch.

    Of each call and each parameter: how far activations and gradients are apart, and by how much
    the call is off by itself, where everything around it is A's. Forward and backward, the first
    place that departs from A by more than noise is named. Two reports that `inspect --sketch -o
    FILE.json` saved, also on two machines, are compared as they are.
    """
    _refuse_unknown("severity", fail_on, FAIL_ON)
    _refuse_unknown("table", table, _TABLES)
    destination = choose_destination(format, file, display, ROOM)
    saved = _saved_reports(words or [])
    if saved is not None:
        refuse_to_run("a saved report", settings or [], asdict(running))
        report = diff_files(*saved, match or ())
    else:
        a, b = _configs(words or [], settings or [], asdict(running))
        with keep_stdout_clean(), shown_progress():
            with importing_torch():
                from gradscope.api import diff_configs
            report = diff_configs(a, b, match=match or (), allow=allow or ())
    _write(report, destination, top, table)
    if reaches(report.findings, fail_on):
        raise typer.Exit(1)


def _refuse_unknown(what: str, word: str | None, choices: tuple[str, ...]) -> None:
    if word is not None and word not in choices:
        help = did_you_mean(word, choices) or f"one of {', '.join(choices)}"
        raise OptionError(f"unknown {what} `{word}`", help=help)


def _saved_reports(words: list[str]) -> tuple[Path, Path] | None:
    """The files of two saved reports; None where none is meant.

    Raises:
        OptionError: one of them is none, or there is more than these two.
    """
    reports = [word for word in words if word.endswith(".json")]
    if not reports:
        return None
    others = [word for word in words if word not in reports and word != _AND]
    if others:
        raise OptionError(
            f"`{reports[0]}` is a saved report, which `{others[0]}` is not",
            help="compare it with another one: `gradscope inspect … --sketch -o other.json`",
        )
    if len(reports) != 2:
        raise OptionError(
            f"two saved reports, please: got {', '.join(f'`{one}`' for one in reports)}",
            help="as in `gradscope diff a.json b.json`",
        )
    return Path(reports[0]), Path(reports[1])


def diff_files(a: Path, b: Path, match: Sequence[str]) -> DiffReport:
    """Two saved reports compared.

    Raises:
        GradscopeError: a file is no report, or the two have nothing in common.
    """
    from gradscope.comparison.reports import compare_reports
    from gradscope.records import json as record_json

    ours, theirs = record_json.load(a, Report), record_json.load(b, Report)
    return compare_reports(ours, theirs, match, files=(str(a), str(b)))


def _configs(
    words: list[str], settings: list[str], options: dict[str, object]
) -> tuple[LoadedConfig, LoadedConfig]:
    """The configs of A and of B."""
    parted = _AND in words
    before, after = words, list[str]()
    if parted:
        at = words.index(_AND)
        before, after = words[:at], words[at + 1 :]
    if _AND in after:
        raise OptionError("`--` is given twice", help="one parts A from B")
    models, overrides = split_words(before)
    others, own = split_words(after)
    models += others
    if not parted and len(models) < 2:
        raise OptionError(
            "nothing to compare with: name two models, or say behind `--` what B has otherwise",
            help="as in `gradscope diff model.yaml -- dtype=bfloat16`",
        )
    if len(models) > 2:
        raise OptionError(
            f"two MODELs, please: got {', '.join(f'`{model}`' for model in models)}",
            help="write overrides as `key=value`, without blanks around `=`",
        )
    a = read_model([*models[:1], *overrides], settings, options)
    b = read_model([*models[-1:], *(own if parted else overrides)], settings, options)
    return a, b


def _write(
    report: DiffReport, destination: Destination, top: int | None, table: str | None
) -> None:
    view = DiffView(destination.width, destination.color, top, table, path_root())
    destination.write(plugins.load(ROOM, destination.format).render(report, view))
