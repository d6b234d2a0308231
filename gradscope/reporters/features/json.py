"""The result of ``gradscope features`` as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.features import FeaturesReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: FeaturesReport, view: TextView) -> str:
    """The record."""
    return record_json.dumps(report)
