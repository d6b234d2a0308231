"""``gradscope diff``: two runs compared layer by layer, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    LayerOptions,
    RunOptions,
    Set,
    format_option,
    takes_groups,
)
from gradscope.commands._progress import shown_progress
from gradscope.commands._runs import is_run
from gradscope.commands._views import Destination, choose_destination
from gradscope.commands._write import keep_stdout_clean
from gradscope.comparison.selection import of_layers
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
    ("gradscope diff before.db after.db", "Two trainings: in which step they part, and where."),
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
            "before `--` are A's; without it, both have them. Or two saved reports, or two runs.",
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
    layers: LayerOptions,
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
    place that departs from A by more than noise is named; it is looked for in all layers, whatever
    rows `-l` chooses. Two reports that `inspect --sketch -o
    FILE.json` saved, also on two machines, are compared as they are; so are two trainings that
    `gradscope run` recorded, of which the first step and layer that part are named.
    """
    _refuse_unknown("severity", fail_on, FAIL_ON)
    _refuse_unknown("table", table, _TABLES)
    destination = choose_destination(format, file, display, ROOM)
    kind = next((kind for kind in _FILES if any(map(kind.mine, words or []))), None)
    if kind is not None:
        files = _two_files(kind, words or [])
        refuse_to_run(kind.name, settings or [], asdict(running))
        report = kind.compare(*files, match or ())
    else:
        a, b = _configs(words or [], settings or [], asdict(running))
        with keep_stdout_clean(), shown_progress():
            with importing_torch():
                from gradscope.api import diff_configs
            report = diff_configs(a, b, match=match or (), allow=allow or ())
    report = of_layers(report, layers.layers or (), layers.exclude or ())
    _write(report, destination, top, table)
    if reaches(report.findings, fail_on):
        raise typer.Exit(1)


def _refuse_unknown(what: str, word: str | None, choices: tuple[str, ...]) -> None:
    if word is not None and word not in choices:
        help = did_you_mean(word, choices) or f"one of {', '.join(choices)}"
        raise OptionError(f"unknown {what} `{word}`", help=help)


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of a kind that are compared as they are, and are never run."""

    name: str
    mine: Callable[[str], bool]
    compare: Callable[[Path, Path, Sequence[str]], DiffReport]
    help: str


def _two_files(kind: _Files, words: list[str]) -> tuple[Path, Path]:
    """The files of A and of B.

    Raises:
        OptionError: a word is something else, or there are not two.
    """
    files = [word for word in words if kind.mine(word)]
    others = [word for word in words if word not in files and word != _AND]
    if others:
        fault = f"`{files[0]}` is {kind.name}, which `{others[0]}` is not"
        raise OptionError(fault, help=f"compare it with another one: {kind.help}")
    if len(files) != 2:
        shown = ", ".join(f"`{file}`" for file in files)
        plural = kind.name.removeprefix("a ") + "s"
        raise OptionError(f"two {plural}, please: got {shown}", help=kind.help)
    return Path(files[0]), Path(files[1])


def diff_reports(a: Path, b: Path, match: Sequence[str] = ()) -> DiffReport:
    """Two saved reports compared.

    Raises:
        GradscopeError: a file is no report, or the two have nothing in common.
    """
    from gradscope.comparison.reports import compare_reports
    from gradscope.records import json as record_json

    ours, theirs = record_json.load(a, Report), record_json.load(b, Report)
    return compare_reports(ours, theirs, match, files=(str(a), str(b)))


def diff_runs(a: Path, b: Path, match: Sequence[str] = ()) -> DiffReport:
    """Two runs compared.

    Raises:
        GradscopeError: a file is no run, or the two have nothing in common.
    """
    from gradscope.comparison.runs import compare_runs
    from gradscope.runfile.reader import RunFile

    with RunFile.open(a) as ours, RunFile.open(b) as theirs:
        return compare_runs(ours, theirs, match)


_FILES = (
    _Files(
        "a saved report",
        lambda word: word.endswith(".json"),
        diff_reports,
        "`gradscope inspect … --sketch -o other.json`",
    ),
    _Files("a run", lambda word: is_run(Path(word)), diff_runs, "`gradscope run SCRIPT.py`"),
)


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
