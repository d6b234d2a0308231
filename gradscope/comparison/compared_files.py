"""Compares two files without a run of a model: saved reports, or training runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradscope.comparison.reports import compare_reports
from gradscope.comparison.runs import compare_runs
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.diff import DiffReport
from gradscope.records.report import Report
from gradscope.records.showing import Shown
from gradscope.records.training import RunHistory
from gradscope.runfile.folder import is_run
from gradscope.runfile.reader import RunFile


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of files.

    Attributes:
        name: its name with an article.
        fits: returns True if a word names one.
        compare: compares two of them, with the user's names.
        made_by: the command that writes one.
    """

    name: str
    fits: Callable[[str], bool]
    compare: Callable[[Path, Path, Sequence[str]], DiffReport]
    made_by: str

    def compared(self, words: Sequence[str], match: Sequence[str] = ()) -> DiffReport:
        """Compare the files of A and of B.

        Raises:
            OptionError: a word is something else, or there are not two.
            GradscopeError: a file is of another kind, or the two have nothing in common.
        """
        files = [word for word in words if self.fits(word)]
        others = [word for word in words if word not in files]
        if others:
            fault = f"`{files[0]}` is {self.name}, which `{others[0]}` is not"
            raise OptionError(fault, help=f"compare it with another one: {self.made_by}")
        if len(files) != 2:
            shown = ", ".join(f"`{file}`" for file in files)
            plural = self.name.removeprefix("a ") + "s"
            raise OptionError(f"two {plural}, please: got {shown}", help=self.made_by)
        a, b = map(Path, files)
        report = self.compare(a, b, match)
        if a.samefile(b):
            report = replace(report, notices=("A and B are one file", *report.notices))
        return report


def kind_of(words: Sequence[str]) -> FileKind | None:
    """Return the kind of file that one of the words names, None without one."""
    return next((kind for kind in _KINDS if any(map(kind.fits, words))), None)


def compared_records(a: Saved, b: Saved, match: Sequence[str]) -> DiffReport:
    """Compare two records in memory, or a record and a file of the same kind.

    Raises:
        OptionError: they are of different kinds, or of a kind without a comparison.
        GradscopeError: as ``FileKind.compared``.
    """
    runs = [_path_of_run(one) for one in (a, b)]
    if all(runs):
        return RUNS.compared([str(run) for run in runs], match)
    reports = [_report(one) for one in (a, b)]
    if reports[0] is None or reports[1] is None:
        one, other = (a, b) if reports[1] is None else (b, a)
        raise OptionError(
            f"{_words(one)} cannot be compared with {_words(other)}",
            help="compare two reports, two runs, or two models",
        )
    names = [
        str(one) if isinstance(one, str | Path) else side
        for side, one in zip("AB", (a, b), strict=True)
    ]
    with record_json.collector_paused():
        return compare_reports(reports[0], reports[1], match, files=(names[0], names[1]))


def _path_of_run(one: Saved) -> Path | None:
    if isinstance(one, RunHistory):
        return one.path
    return Path(one) if isinstance(one, str | Path) and RUNS.fits(str(one)) else None


def _report(one: Saved) -> Report | None:
    if isinstance(one, str | Path) and REPORTS.fits(str(one)):
        return record_json.load(Path(one), Report)
    return one if isinstance(one, Report) else None


def _words(one: Saved | Shown) -> str:
    if isinstance(one, RunHistory):
        return "a run"
    if isinstance(one, Shown):
        return "a report" if isinstance(one, Report) else f"a {type(one).__name__}"
    return f"`{one}`"


def _compare_reports(a: Path, b: Path, match: Sequence[str]) -> DiffReport:
    with record_json.collector_paused():
        ours, theirs = record_json.load(a, Report), record_json.load(b, Report)
        return compare_reports(ours, theirs, match, files=(str(a), str(b)))


def _compare_runs(a: Path, b: Path, match: Sequence[str]) -> DiffReport:
    with RunFile.open(a) as ours, RunFile.open(b) as theirs:
        return compare_runs(ours, theirs, match)


#: Sources that are compared as they are: a record, or the path of one.
Saved = Report | RunHistory | str | Path
REPORTS = FileKind(
    "a saved report",
    lambda word: word.endswith(".json"),
    _compare_reports,
    "`gradscope inspect … --sketch -o other.json`",
)
RUNS = FileKind(
    "a run", lambda word: is_run(Path(word)), _compare_runs, "`gradscope run SCRIPT.py`"
)
_KINDS = (REPORTS, RUNS)
