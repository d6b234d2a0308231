"""A training run as text for people: header, step metrics, findings, events, layers over steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from gradscope.records.history import RunHistory
from gradscope.reporters import finding_lines
from gradscope.reporters.header import fact_lines
from gradscope.reporters.report import View
from gradscope.reporters.training.sentences import events, findings, summary
from gradscope.reporters.training.tables import layers, step_metrics, steps
from gradscope.reporters.training.tables.naming import qualified
from gradscope.typeset.console import (
    Line,
    dimmed,
    paragraphs,
    printed,
    prose,
    stacked,
    table_lines,
)
from gradscope.typeset.tables import Table
from gradscope.typeset.text import join

suffix = ".txt"


def render(history: RunHistory, view: View) -> str:
    """The run at the view's width; without one nothing is hidden and nothing breaks."""
    return printed(page(history, view), width=view.width, color=view.color)


def page(history: RunHistory, view: View) -> list[Text]:
    """The lines of the page."""
    return stacked(_blocks(qualified(history), view))


def head(history: RunHistory, width: int | None) -> Iterator[Text]:
    """What was run, how it ended, and how it was sampled."""
    first, *others = summary.facts(history)
    yield from fact_lines([first], width)
    yield from prose(summary.end(history), width)
    for facts in others:
        yield from map(Text, join(facts, width))
    for note in summary.notes(history):
        yield from dimmed(note, width)


def _blocks(history: RunHistory, view: View) -> Iterator[Iterable[Text]]:
    yield head(history, view.width)
    wanted = view.table
    if wanted is None:
        yield _table(step_metrics.table(history, view.width), view) or [
            Text("no step was completed")
        ]
    if wanted == "steps":
        yield _table(steps.table(history, view), view) or [Text("no step was completed")]
    if wanted in (None, "findings"):
        yield _findings(history, view)
    if wanted in (None, "events") and history.events:
        yield [
            Text("events", "bold"),
            *paragraphs(_events(history, view), view.width),
        ]
    elif wanted == "events":
        yield [Text("no events")]
    if wanted in (None, "parameters"):
        yield _table(layers.table(history, "parameters", view), view)
    if wanted == "calls":
        yield _table(layers.table(history, "calls", view), view)
    if wanted in ("parameters", "calls") and layers.table(history, wanted, view) is None:
        reasons = summary.without_calls(history) if wanted == "calls" else ()
        yield [Text(f"no {wanted} were recorded"), *paragraphs(map(Line, reasons), view.width)]


def _events(history: RunHistory, view: View) -> Iterator[Line]:
    option = view.option("--table events")
    return events.lines(history.events, full=view.table is not None, option=option)


def _table(table: Table | None, view: View) -> list[Text]:
    return list(table_lines(table, view.width)) if table else []


def _findings(history: RunHistory, view: View) -> list[Text]:
    found, known = findings.with_steps(history)
    judged = paragraphs(findings.verdict(history), view.width)
    if not found:
        return list(judged)
    lines = paragraphs(finding_lines.every_line(found, known), view.width)
    return stacked([[Text("findings", "bold"), *lines], judged])
