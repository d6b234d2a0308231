"""Dependency maps as charts, for pages and pictures."""

from __future__ import annotations

from gradscope.charts.maps import Map
from gradscope.records.leaks import LeaksReport


def maps(report: LeaksReport) -> tuple[Map, ...]:
    """Outputs downwards, inputs to the right; a causal map is a triangle."""
    return tuple(
        Map(
            f"{one.axis}: what each output depends on",
            "|∂ output / ∂ input|",
            "input",
            tuple(f"output {at}" for at in one.outputs),
            one.inputs,
            one.values,
        )
        for one in report.maps
    )
