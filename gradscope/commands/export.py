"""``gradscope export``: a run's numbers for other tools."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Annotated

from gradscope import plugins
from gradscope.commands._options import Debug, Force, Rank, RecordedRun, option
from gradscope.commands._write import STDOUT, output_file, say
from gradscope.errors import GradscopeError, OptionError, message_of, visible
from gradscope.output_files import atomic_folder
from gradscope.runfile.folder import chosen_run, file_of
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import MOST_KEYS, KeepsFiles, KeySelection, attach, send
from gradscope.training.tracker_thread import ROOM, check_packages
from gradscope.typeset.numbers import plural

EXAMPLES = (
    ("gradscope export --to csv run.csv", "The newest run in `gradscope-runs/`."),
    ("gradscope export run.db --to csv run.csv", "A row for each step, call and parameter."),
    ("gradscope export run.db --to tensorboard logs", "A chart for each number."),
    ("gradscope export run.db --to mlflow vision", "A new run in an experiment of MLflow."),
)


def run(
    path: RecordedRun = None,
    *,
    to: Annotated[
        tuple[str, str],
        option(
            "TOOL PLACE",
            "csv FILE, parquet FILE, tensorboard DIR, wandb PROJECT, mlflow EXPERIMENT, trackio "
            "PROJECT or otlp HOST. `csv -` is standard output.",
        ),
    ],
    keys: Annotated[
        int | None,
        option(
            "N",
            "Send at most N charts to a tracker: step metrics, then the worst layers (default: "
            f"{MOST_KEYS}).",
            min=1,
        ),
    ] = None,
    rank: Rank = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Write the numbers of a run for TensorBoard, a spreadsheet or an experiment tracker.

    It writes the metrics of each step, and the numbers of each layer and parameter in each sampled
    step. In a tracker, findings are alerts, and the run's page is an artifact.
    """
    name, destination = to
    export = plugins.load(ROOM, name)
    check_packages(name, export)
    is_file = hasattr(export, "folder")
    if is_file and keys is not None:
        raise OptionError(f"`--keys` is for a tracker, and `{name}` gets every number")
    if not is_file and hasattr(export, "address"):
        export.address(destination)
    chosen = chosen_run(path, "export")
    with RunFile.open(file_of(chosen.path, rank)) as recorded:
        if is_file:
            with _output(export, Path(destination), force) as place:
                export.write(recorded, place)
            done = f"wrote {destination}"
        else:
            sent = _send(recorded, name, export, destination, keys or MOST_KEYS)
            done = f"sent {plural(sent, 'step')} to {name}: {destination}"
    if chosen.heading is not None:
        say(chosen.heading)
    if destination != str(STDOUT):
        print(visible(done), file=sys.stderr)


def _output(export: ModuleType, path: Path, force: bool) -> AbstractContextManager[Path]:
    if export.folder is None:
        return output_file(path, force=force)
    return atomic_folder(path, export.folder, force=force)


def _send(run: RunFile, name: str, export: ModuleType, place: str, keys: int) -> int:
    """Make a run in a tracker; return the number of steps.

    Raises:
        ConfigError: the run's file is damaged.
        OptionError: the tracker did not take it.
    """
    from gradscope.api.showing import run_page

    try:
        tracker = export.opened(place, run.run)
        sent = send(run, tracker, KeySelection(keys))
        if isinstance(tracker, KeepsFiles):
            attach(tracker, run_page(run))
        tracker.close()
    except GradscopeError:
        raise
    except Exception as error:  # whatever the tracker's package raises
        raise OptionError(
            f"{name} did not take the run: {type(error).__name__}: {message_of(error)}",
            help="see that its server runs and that you are logged in; `--debug` shows all",
        ) from error
    return sent
