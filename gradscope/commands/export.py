"""``gradscope export``: a run's numbers for other tools."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Annotated

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._options import Debug, Force, Rank, argument, option
from gradscope.commands._write import STDOUT, output_file, say
from gradscope.errors import OptionError, visible
from gradscope.output_files import whole_folder
from gradscope.runfile.folder import chosen_run, file_of
from gradscope.runfile.reader import RunFile

ROOM = "gradscope.runfile.exports"
EXAMPLES = (
    ("gradscope export --to csv run.csv", "Of the newest run in `gradscope-runs/`."),
    ("gradscope export run.db --to csv run.csv", "A row for each step, call and parameter."),
    ("gradscope export run.db --to tensorboard logs", "A chart for each number."),
)


def run(
    path: Annotated[
        Path | None,
        argument(
            "RUN",
            "The recorded run: a file, folder or name (default: the newest run "
            "in `gradscope-runs/`).",
            complete=completing.runs,
        ),
    ] = None,
    *,
    to: Annotated[
        tuple[str, Path],
        option(
            "FORMAT PATH", "csv FILE, parquet FILE or tensorboard DIR. `csv -` is standard output."
        ),
    ],
    rank: Rank = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Write the numbers of a run for TensorBoard, a spreadsheet or a data frame.

    The metrics of each step, and each layer and parameter in each sampled step.
    """
    name, destination = to
    export = plugins.load(ROOM, name)
    missing = [one for one in export.packages if importlib.util.find_spec(one) is None]
    if missing:
        raise OptionError(
            f"`--to {name}` needs {missing[0]}, which is not installed",
            help="pip install 'gradscope[export]'",
        )
    chosen = chosen_run(path, "export")
    with (
        RunFile.open(file_of(chosen.path, rank)) as recorded,
        _output(export, destination, force) as place,
    ):
        export.write(recorded, place)
    if chosen.heading is not None:
        say(chosen.heading)
    if destination != STDOUT:
        print(visible(f"wrote {destination}"), file=sys.stderr)


def _output(export: ModuleType, path: Path, force: bool) -> AbstractContextManager[Path]:
    if export.folder is None:
        return output_file(path, force=force)
    return whole_folder(path, export.folder, force=force)
