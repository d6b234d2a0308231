"""Leaks as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.leaks import LeaksReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: LeaksReport, view: TextView) -> str:
    """Everything that was found."""
    return record_json.dumps(report)
