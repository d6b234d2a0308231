"""A saliency report as strict JSON: the record itself."""

from __future__ import annotations

from gradscope.records import json as record_json
from gradscope.records.saliency import SaliencyReport
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(report: SaliencyReport, view: TextView) -> str:
    """Everything but the maps themselves."""
    return record_json.dumps(report)
