"""Answers as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: WhyReport, view: TextView) -> str:
    """Everything that was learned."""
    return record_json.dumps(report)
