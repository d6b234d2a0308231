"""The findings of a comparison as SARIF 2.1.0, as those of a check of B."""

from __future__ import annotations

from gradscope.records.diff import DiffReport
from gradscope.reporters.diff._check import as_check
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.report import View, sarif

suffix = sarif.suffix


def render(report: DiffReport, view: DiffView) -> str:
    """The rules of a comparison, and a result for each finding."""
    return sarif.render_check(as_check(report), View(root=view.root, rules=view.rules))
