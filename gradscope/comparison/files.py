"""Two files that are compared as they are: saved reports, or training runs."""

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
from gradscope.runfile.opening import is_run
from gradscope.runfile.reader import RunFile


@dataclass(frozen=True, slots=True)
class FileKind:
    """Files of a kind.

    Attributes:
        name: of one.
        fits: whether a word names one.
        compare: two of them, with what was said of names.
        made_by: the command that writes one.
    """

    name: str
    fits: Callable[[str], bool]
    compare: Callable[[Path, Path, Sequence[str]], DiffReport]
    made_by: str

    def compared(self, words: Sequence[str], match: Sequence[str] = ()) -> DiffReport:
        """The two files of A and of B.

        Raises:
            OptionError: a word is something else, or there are not two.
            GradscopeError: a file is no such, or the two have nothing in common.
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
    """The kind that one of the words names, if any does."""
    return next((kind for kind in _KINDS if any(map(kind.fits, words))), None)


def _compare_reports(a: Path, b: Path, match: Sequence[str]) -> DiffReport:
    with record_json.collector_paused():
        ours, theirs = record_json.load(a, Report), record_json.load(b, Report)
        return compare_reports(ours, theirs, match, files=(str(a), str(b)))


def _compare_runs(a: Path, b: Path, match: Sequence[str]) -> DiffReport:
    with RunFile.open(a) as ours, RunFile.open(b) as theirs:
        return compare_runs(ours, theirs, match)


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
