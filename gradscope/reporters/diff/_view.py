"""Options of a comparison's text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.records.report import RuleText


@dataclass(frozen=True, slots=True)
class DiffView:
    """``width`` None is unlimited, as in a pipe.

    ``top`` shows as many rows of each table, those that are farthest off; ``table`` one of "calls",
    "parameters" and "findings" alone. ``root`` is what paths in annotations are relative to.
    ``panels`` and ``maps`` are charts for a page, of what both have over their steps; ``rules`` are
    what SARIF tells of each rule.
    """

    width: int | None = None
    color: bool = False
    top: int | None = None
    table: str | None = None
    root: Path | None = None
    panels: tuple[Panel, ...] = ()
    maps: tuple[Map, ...] = ()
    rules: tuple[RuleText, ...] = ()
