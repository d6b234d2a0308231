"""Document of ``leaks``: each axis once, the worst first, and the dependency maps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.text import Text

from gradscope.charts.maps import Map
from gradscope.pages import Part
from gradscope.records.leaks import AXES, VERDICTS, AxisResult, DependencyMap, LeaksReport
from gradscope.reporters.document import Block, Document, Drawn, Entries, Entry, Prose, formats
from gradscope.reporters.header import TONES, notes, run_facts
from gradscope.reporters.views import TextView
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain


def in_order(report: LeaksReport) -> list[AxisResult]:
    """Sort the axes, the worst first."""
    return sorted(report.axes, key=lambda one: (VERDICTS.index(one.verdict), AXES.index(one.axis)))


def axis_lines(one: AxisResult) -> Iterator[Line]:
    """Yield one axis: its verdict, its finding, and its fix."""
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
    """Yield the number of judged axes and of forwards, in words."""
    if not report.axes:
        return
    judged = [one for one in report.axes if one.verdict != "not-judged"]
    leaking = len(report.leaks)
    cost = f"{plural(report.forwards, 'forward')}, {plural(report.backwards, 'backward')}"
    found = "no leak" if not leaking else f"{leaking} of them leak" + "s" * (leaking == 1)
    axes = f"{plural(len(judged), 'axis', 'axes')} judged"
    yield Line(f"{axes}, {found}; {cost}")


#: From no dependency to the strongest.
SHADES = " ░▒▓█"
UNKNOWN = "?"


def map_lines(one: DependencyMap) -> Iterator[Text]:
    """Yield the map with its title and its two axes."""
    title = f"{one.axis}: what each output (down) depends on (across), by {one.instrument}"
    yield Text(title, style="bold")
    for at, row in zip(one.outputs, one.values, strict=True):
        yield Text(f"{at:>5} │{''.join(shades(row))}│")
    step = max(1, len(one.inputs) // 4)
    marks = "".join(f"{at:<{step}}" if n % step == 0 else "" for n, at in enumerate(one.inputs))
    yield Text(f"{'':>6} {marks}")


def shades(row: tuple[float | None, ...]) -> Iterator[str]:
    """Yield a character for each value, by its orders of magnitude below the row's largest."""
    largest = max((value for value in row if value), default=0.0)
    for value in row:
        if value is None:
            yield UNKNOWN
        elif value <= 0:
            yield SHADES[0]
        else:
            below = -math.log10(value / largest)
            yield SHADES[max(1, 4 - int(below))]


def maps(report: LeaksReport) -> tuple[Map, ...]:
    """Draw the maps: outputs downwards, inputs to the right; a causal map is a triangle."""
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


def document(report: LeaksReport, view: TextView, format: str) -> Document:
    """Return the document: the error, if there was one, the axes, and the maps."""
    entries = [
        Entry(
            tuple(axis_lines(one)),
            None if one.source is None else f"{one.source.file}:{one.source.line}",
            brief=one.verdict != "leaks",
        )
        for one in in_order(report)
    ]
    blocks: list[Block] = [*filter(None, [report.error]), Entries(entries, "axes")]
    blocks += [Drawn(list(map_lines(one))) for one in report.maps]
    blocks.append(Prose(tuple(conclusion(report)), "axes"))
    if report.maps:
        blocks.append(Part("dependencies", maps=maps(report)))
    facts = run_facts(report.run)
    heading = f"leaks: {facts[0]}"
    return Document(
        "leaks", [facts], notes(report.run.notices), blocks, report.versions, heading=heading
    )


FORMATS = formats(document)
