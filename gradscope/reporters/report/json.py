"""A report as strict JSON: the record itself, everything in it, which ``gradscope show`` reads."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.report import CheckReport, Report
from gradscope.reporters.report._view import View

suffix = ".json"


def render(report: Report, view: View) -> str:
    """The full report; a view chooses what is shown of it, not what it is."""
    return record_json.dumps(report)


def render_check(check: CheckReport, view: View) -> str:
    """The full check; its schema is not a report's."""
    return record_json.dumps(check)
