"""Rules as strict JSON: their documentation, thresholds and presets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradscope.records.data import to_data
from gradscope.reporters.text_view import TextView
from gradscope.rules import Rule

suffix = ".json"


def render(rules: Sequence[Rule], view: TextView) -> str:
    """Everything about each rule."""
    data = {"schema": "gradscope.rules/1", "rules": list(map(_data, rules))}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _data(rule: Rule) -> Any:
    data = to_data(rule)
    for threshold, record in zip(data["thresholds"], rule.thresholds, strict=True):
        threshold["presets"] = dict(record.presets)
    return data
