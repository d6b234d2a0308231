"""The lines that every format for people shows."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.leaks import AXES, VERDICTS, AxisResult, LeaksReport
from gradscope.reporters.labels import TONES
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain


def in_order(report: LeaksReport) -> list[AxisResult]:
    """The worst first."""
    return sorted(report.axes, key=lambda one: (VERDICTS.index(one.verdict), AXES.index(one.axis)))


def axis_lines(one: AxisResult) -> Iterator[Line]:
    """One axis: its verdict, what was found, and what helps."""
    if one.verdict != "leaks":
        lead = "info" if one.verdict == "by-design" else one.verdict
        tone = {"clean": "good", "by-design": TONES.get("info", "")}.get(one.verdict, "")
        text = plain(one.message)
        if one.verdict == "not-judged" and one.advice:
            text = f"{text}; {plain(one.advice)}"
        yield Line(text, f"{lead} {one.axis}:", tone)
        return
    layer = "" if one.layer is None else f" {plain(one.layer) or 'the model itself'}"
    lead = f"error {one.code} {one.rule}{layer}:"
    yield Line(plain(one.message), lead, TONES["error"])
    if one.source is not None and one.source.text:
        place = f"{one.source.file}:{one.source.line}"
        yield Line(plain(one.source.text), f"{plain(place)}:", indent=1)
    if one.effect is not None:
        text = f"the largest change is {_share(one.effect)} of the outputs' spread"
        yield Line(text, "effect:", indent=1)
    if one.advice:
        yield Line(plain(one.advice), "help:", indent=1)


def _share(effect: float) -> str:
    return f"{effect:.0%}" if effect >= 0.01 else f"{effect:.1e}"


def conclusion(report: LeaksReport) -> Iterator[Line]:
    """What was judged, and what it took."""
    if not report.axes:
        return
    judged = [one for one in report.axes if one.verdict != "not-judged"]
    leaking = len(report.leaks)
    cost = f"{plural(report.forwards, 'forward')}, {plural(report.backwards, 'backward')}"
    found = "no leak" if not leaking else f"{leaking} of them leak" + "s" * (leaking == 1)
    axes = f"{plural(len(judged), 'axis', 'axes')} judged"
    yield Line(f"{axes}, {found}; {cost}")
