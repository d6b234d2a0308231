"""A spike as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.spike import SpikeReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: SpikeReport, view: TextView) -> str:
    """All samples, and all steps before that were kept."""
    return record_json.dumps(report)
