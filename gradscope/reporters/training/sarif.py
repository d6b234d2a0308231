"""A run's findings as SARIF, for code scanning."""

from __future__ import annotations

from gradscope.records.history import RunHistory
from gradscope.reporters.report import View, sarif
from gradscope.reporters.training.sentences.findings import as_check

suffix = ".sarif"


def render(history: RunHistory, view: View) -> str:
    """A result for each finding."""
    return sarif.render_check(as_check(history), view)
