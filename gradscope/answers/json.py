"""Answers as strict JSON: the record itself."""

from __future__ import annotations

from gradscope import reports
from gradscope.answers._view import AnswerView
from gradscope.records import WhyReport

suffix = ".json"


def render(report: WhyReport, view: AnswerView) -> str:
    """Everything that was learned."""
    return reports.dumps(report)
