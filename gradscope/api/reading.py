"""Reads a file: a saved report, check, answers, comparison or graph, or a training run."""

from __future__ import annotations

from pathlib import Path

from gradscope.api.run_history import read_history
from gradscope.errors import ConfigError
from gradscope.output_files import expanded
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.records.diff import DiffReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.history import RunHistory
from gradscope.records.report import CheckReport, Report
from gradscope.runfile.folder import run_named
from gradscope.runfile.reader import RunFile

Loaded = Report | CheckReport | WhyReport | DiffReport | AutogradGraph | RunHistory


def load(path: str | Path) -> Loaded:
    """Read what a command or ``save`` wrote, as the record that it was; nothing runs.

        >>> run = gradscope.load("gradscope-runs/train-20260101-120000.db")
        >>> run.findings[0].code
        >>> run.report(40)["fc.weight"].grad.norm

    Args:
        path: a ``.json`` of ``inspect``, ``check``, ``why``, ``diff`` or ``graph``; or a run, which
            may go on: its file, its folder, or its name as ``gradscope show`` takes it.

    Returns:
        The record; of a run a ``RunHistory``, which has its steps, findings and series of layers.

    Raises:
        ConfigError: there is no such file, or it is damaged, or something else.
    """
    path = expanded(path)
    run = run_named(path)
    if run is not None:
        with RunFile.open(run) as opened:
            return read_history(opened, calls=True)
    if not path.suffix and not path.exists():
        raise ConfigError(
            f"no run and no report is named `{path}`", help="name a file: `gradscope.load('x.db')`"
        )
    return record_json.load_any(path)
