"""A comparison as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.diff import DiffReport
from gradscope.reporters.diff._view import DiffView

suffix = ".json"


def render(report: DiffReport, view: DiffView) -> str:
    """Everything that was learned."""
    return record_json.dumps(report)
