"""An experiment as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.experiment import ExperimentReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: ExperimentReport, view: TextView) -> str:
    """Everything that was learned."""
    return record_json.dumps(report)
