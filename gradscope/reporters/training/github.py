"""A run's findings as annotations of GitHub's, on the lines of the script."""

from __future__ import annotations

from gradscope.records.history import RunHistory
from gradscope.reporters.report import View, github
from gradscope.reporters.training.sentences.findings import as_check

suffix = ".github"


def render(history: RunHistory, view: View) -> str:
    """A command for each finding, the sum, and what could not be judged."""
    return github.render_check(as_check(history), view)
