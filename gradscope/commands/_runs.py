"""Which run a command reads: the one that is named, or the newest, and then it says which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import OptionError
from gradscope.runfile.folder import FOLDER, began, recorded, run_named

RECORD = "`gradscope run SCRIPT.py` records one"


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run to read; ``heading`` names it if the user did not."""

    path: Path
    heading: str | None = None


def chosen_run(word: Path | None, command: str) -> ChosenRun:
    """The run that a word means, without a word the newest one.

    What the word does not name stays as it is, for whoever opens it to say.

    Raises:
        OptionError: there is no word, and no run.
    """
    if word is not None:
        return ChosenRun(run_named(word) or word)
    newest = newest_run()
    if newest is None:
        raise OptionError(f"no run is given, and `{FOLDER}` has none", help=name_one(command))
    return newest


def newest_run() -> ChosenRun | None:
    """The newest run in the folder of runs, None where there is none."""
    runs = recorded()
    return ChosenRun(runs[0], f"newest run: {runs[0]}") if runs else None


def name_one(command: str) -> str:
    """How to name a run that lies elsewhere, or else to record one."""
    here = [path for path in recorded(Path()) if began(path) is not None]
    help = f"name one: `gradscope {command} {here[0]}`" if here else RECORD
    also = "; a saved report: `gradscope show report.json`" if command == "show" else ""
    return help + also
