"""``gradscope diff``: two runs compared layer by layer, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.api.reading import read_history
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.commands import _completing as completing
from gradscope.commands._findings import fail_on_option
from gradscope.commands._model import (
    DASHES,
    BothSides,
    importing_torch,
    parted,
    read_model,
    refuse_to_run,
    split_words,
)
from gradscope.commands._options import (
    LAYERS,
    MODEL,
    TABLES,
    DisplayOptions,
    FileOptions,
    LayerOptions,
    ModelOptions,
    Rank,
    argument,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import choose_destination, diff_view
from gradscope.comparison.compared_files import RUNS, kind_of
from gradscope.comparison.reports import of_layers
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import OptionError, refuse_unknown
from gradscope.records.diff import REFERENCES, TABLES_OF_DIFF
from gradscope.rules import FAIL_ON, reaches
from gradscope.runfile.folder import FOLDER, file_of, recorded, run_named

ROOM = "gradscope.reporters.diff"
EXAMPLES = (
    ("gradscope diff model.yaml -- dtype=bfloat16", "A model against itself in bfloat16."),
    (
        "gradscope diff model.yaml -- dtype=bfloat16 --reference float64",
        "Which one is more accurate?",
    ),
    ("gradscope diff model.yaml -- compile=true", "The same model under `torch.compile`."),
    (
        "gradscope diff model.yaml port.yaml --top 10",
        "A port, and the ten rows with the largest errors.",
    ),
    ("gradscope diff here.json there.json", "Two reports that `inspect --sketch` saved."),
    ("gradscope diff", "The two newest runs: the first step and layer that diverge."),
    ("gradscope diff before.db after.db", "Two other runs."),
    (
        "gradscope diff ./net.py:Net ./net.py:Port --match 'encoder.*=layers.*'",
        "B has other names.",
    ),
)
Parser = BothSides


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "A [B] [KEY=VALUE…] [-- [B] KEY=VALUE…]",
            "Two MODELs; or one, and B's config keys after `--`. Keys before `--` are A's; "
            "without `--`, both have them. Or two saved reports, or two runs (default: the two "
            "newest runs in `gradscope-runs/`).",
            complete=completing.models_and_runs,
        ),
    ] = None,
    *,
    model: ModelOptions,
    match: Annotated[
        list[str] | None,
        option(
            "A=B", "Modules with other names in B: `encoder.*=layers.*`. Repeatable.", panel=LAYERS
        ),
    ] = None,
    reference: Annotated[
        str | None,
        option(
            "float64",
            "Run A in float64 too, and report the error of A and of B from it.",
            panel=MODEL,
            complete=completing.one_of(REFERENCES),
        ),
    ] = None,
    rank: Rank = None,
    layers: LayerOptions,
    fail_on: Annotated[str, fail_on_option("a finding")] = "never",
    top: Annotated[
        int | None,
        option("N", "Only the N rows of each table with the largest errors.", min=0, panel=TABLES),
    ] = None,
    table: Annotated[
        str | None,
        option(
            "TABLE",
            "Only this table: `calls`, `parameters` or `findings`.",
            complete=completing.one_of(TABLES_OF_DIFF),
            panel=TABLES,
        ),
    ] = None,
    format: Annotated[
        str | None,
        format_option(
            ROOM,
            "terminal, html, json, csv, markdown, github (annotations) or sarif. Wins over -o's "
            "suffix.",
        ),
    ] = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Compare two models, two saved reports or two training runs: where do they diverge first?

    Two models get the same weights and the same batch. B runs twice: free-running, and
    teacher-forced, where each call of B gets A's input. The tables show the error of each
    activation and gradient. gradscope names the first layer that diverges by more than noise,
    forward and backward; `-l` only selects rows of the tables.

    Two reports of `inspect --sketch -o FILE.json`, also from two machines, are compared without a
    run. For two runs of `gradscope run`, gradscope names the first step and layer that diverge.
    """
    refuse_unknown("severity", fail_on, FAIL_ON)
    if table is not None:
        refuse_unknown("table", table, TABLES_OF_DIFF)
    if reference is not None:
        refuse_unknown("reference", reference, REFERENCES)
    files, heading = _files(words or [], asked=bool(model.keys or model.settings))
    destination = choose_destination(format, file, display, ROOM, heading)
    panels: tuple[Panel, ...] = ()
    maps: tuple[Map, ...] = ()
    kind = kind_of(files)
    if rank is not None:
        files = _of_rank(files, rank)
    if kind is not None:
        keys = {**model.keys, "reference": reference}
        refuse_to_run(kind.name, model.settings or [], keys)
        report = kind.compared(files, match or ())
        if kind is RUNS and destination.format == "html":
            panels, maps = _run_charts(*map(Path, files))
    else:
        a, b = _configs(words or [], model)
        with running(model.timeout):
            with importing_torch():
                from gradscope.api.diffing import diff
            report = diff(a, b, reference=reference, match=match or (), allow=model.allow or ())
    report = of_layers(report, layers.layers or (), layers.exclude or ())
    destination.show(report, diff_view(destination, top, table, panels, maps))
    if reaches(report.findings, fail_on):
        raise typer.Exit(1)


def _files(words: list[str], *, asked: bool) -> tuple[list[str], str | None]:
    """Return the words that may be files, with runs as their paths, and a notice on them.

    If a run is missing, the newest one takes its place. ``asked`` keys prevent that, because only
    models take keys.

    Raises:
        OptionError: there is one run, and nothing else is named.
    """
    files = [word for word in words if word != DASHES]
    named = {word: run_named(Path(word)) for word in files if word != "demo"}
    found = [str(named.get(word) or word) for word in files]
    if asked or DASHES in words or len(found) > 1 or not all(map(named.get, files)):
        return found, None
    return _with_newest(found)


def _with_newest(found: list[str]) -> tuple[list[str], str | None]:
    """Return a run and the newest one; without a run, the two newest ones."""
    known = [Path(one).resolve() for one in found]
    runs = [run for run in recorded() if run.resolve() not in known]
    if found and runs:
        return [*found, str(runs[0])], f"A: {found[0]} · B: {runs[0]}, the newest run"
    if found or not runs:
        return found, None
    if len(runs) == 1:
        raise OptionError(
            f"there is only one run in `{FOLDER}`: `{runs[0]}`",
            help="record a second one, or name another: `gradscope diff OTHER.db`",
        )
    b, a = runs[:2]
    return [str(a), str(b)], f"A: {a}, the run before · B: {b}, the newest run"


def _of_rank(files: list[str], rank: int) -> list[str]:
    """Replace each run of several processes by the file of one rank."""
    found = [str(file_of(Path(one), rank)) if Path(one).is_dir() else one for one in files]
    if found == files:
        raise OptionError("`--rank` is for runs of several processes, under `torchrun`")
    return found


def _run_charts(a: Path, b: Path) -> tuple[tuple[Panel, ...], tuple[Map, ...]]:
    """Return charts with the step metrics of two runs in one, and the maps of their layers side by
    side."""
    from gradscope.reporters.run import qualified
    from gradscope.reporters.run.step_metrics import maps_together, together
    from gradscope.runfile.reader import RunFile

    with RunFile.open(a) as ours, RunFile.open(b) as theirs:
        both = [qualified(read_history(run, calls=True)) for run in (ours, theirs)]
    return together(*both), maps_together(*both)


def _configs(words: list[str], options: ModelOptions) -> tuple[LoadedConfig, LoadedConfig]:
    """Return the configs of A and of B."""
    before, behind = parted(words)
    two_sides, after = behind is not None, behind or []
    if DASHES in after:
        raise OptionError("`--` is given twice", help="write it once, between A and B")
    models, overrides = split_words(before)
    others, own = split_words(after)
    models += others
    if not two_sides and len(models) < 2:
        raise OptionError(
            "nothing to compare: give two models, or B's overrides after `--`",
            help="as in `gradscope diff model.yaml -- dtype=bfloat16`; without words it compares "
            f"the two newest runs in `{FOLDER}`",
        )
    if len(models) > 2:
        raise OptionError(
            f"two MODELs, please: got {', '.join(f'`{model}`' for model in models)}",
            help="write overrides as `key=value`, without blanks around `=`",
        )
    a = read_model([*models[:1], *overrides], options)
    others = own if two_sides else overrides
    return a, read_model([*models[-1:], *others], options)
