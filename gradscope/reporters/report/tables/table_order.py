"""Which of a report's tables a view shows, and in what order: the same in every format."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.report import Report
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import report_tables
from gradscope.reporters.report.tables.accumulation import accumulation
from gradscope.reporters.report.tables.gradchecks import gradient_checks
from gradscope.reporters.report.tables.interventions import interventions
from gradscope.reporters.report.tables.per_sample import per_sample
from gradscope.reporters.report.tables.tasks import tasks
from gradscope.typeset.tables import Table

NO_CALLS = "no calls were recorded"


def tables(report: Report, view: View) -> Iterator[Table]:
    """Those that hold something."""
    if view.table in (None, "calls") and report.calls:
        yield report_tables.calls(report, view)
    if view.table in (None, "parameters"):
        owned = report_tables.parameters(report, view)
        if owned.rows:
            yield owned
    if view.table is not None:
        return
    steps = report_tables.history(report)
    if steps:
        yield steps
    for made in (interventions, accumulation, tasks, per_sample, gradient_checks):
        table = made(report, view)
        if table is not None:
            yield table


def lacks_calls(report: Report, view: View) -> bool:
    """Whether calls are to be shown and there are none."""
    return view.table in (None, "calls") and not report.calls
