"""Answers as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.answers._view import AnswerView
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport

suffix = ".json"


def render(report: WhyReport, view: AnswerView) -> str:
    """Everything that was learned."""
    return record_json.dumps(report)
