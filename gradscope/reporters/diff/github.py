"""The findings of a comparison as GitHub's workflow commands, as those of a check of B."""

from __future__ import annotations

from gradscope.records.diff import DiffReport
from gradscope.reporters.diff._check import as_check
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.report import View, github

suffix = github.suffix


def render(report: DiffReport, view: DiffView) -> str:
    """A command for each finding, and the sum as plain text."""
    return github.render_check(as_check(report), View(root=view.root))
