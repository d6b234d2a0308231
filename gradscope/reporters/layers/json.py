"""Layers as strict JSON: the records themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gradscope.records.data import to_data
from gradscope.records.modules import LayerInfo
from gradscope.reporters.text_view import TextView

suffix = ".json"


def render(layers: Sequence[LayerInfo], view: TextView) -> str:
    """Every layer with its own parameters."""
    return json.dumps({"layers": to_data(layers)}, indent=1) + "\n"
