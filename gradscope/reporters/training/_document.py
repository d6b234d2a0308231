"""A training run: how it went, step metrics, findings, events, and layers over steps."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gradscope.pages import Part
from gradscope.records.training import RunHistory
from gradscope.records.transformer import PROBES
from gradscope.reporters.document import Block, Document, Found, Nothing, Said, texts
from gradscope.reporters.run import charts, findings, layers, step_metrics, steps, summary
from gradscope.reporters.run.naming import qualified
from gradscope.reporters.tables.transformer import NOTHING
from gradscope.reporters.views import View


def document(history: RunHistory, view: View, format: str) -> Document:
    """Return the document of a run by the view; ``view.table`` selects a single table."""
    history = qualified(history)
    return Document(
        "run",
        summary.facts(history),
        list(summary.notes(history)),
        list(_page(history, view) if format == "html" else _text(history, view, format)),
        history.run.versions,
        end=summary.end(history),
    )


def page(history: RunHistory, view: View) -> list[Text]:
    """The lines of the page in a terminal."""
    return texts(document(history, view, "terminal"), view.width)


def _text(history: RunHistory, view: View, format: str) -> Iterator[Block]:
    wanted = view.tables
    if not wanted:
        width = view.width if format == "terminal" else None
        yield step_metrics.table(history, width) or Nothing("no step was completed")
    if "steps" in wanted:
        yield steps.table(history, view) or Nothing("no step was completed")
    if not wanted or "findings" in wanted:
        yield from _findings(history)
    if not wanted or "events" in wanted:
        yield from _events(history, view, full=bool(wanted))
    for name in ("parameters", "updates", "calls", *PROBES):
        if name in wanted or (not wanted and name == "parameters"):
            yield from _layers(history, name, view)


def _page(history: RunHistory, view: View) -> Iterator[Block]:
    wanted = view.tables
    if not wanted or "findings" in wanted:
        yield from _findings(history)
    if not wanted:
        table = step_metrics.table(history, None)
        if table:
            yield Part("step metrics", table.caption, panels=charts.panels(history))
            yield Part("step metrics in figures", table=table, remarks=table.legend)
        drawn = tuple(charts.maps(history))
        if drawn:
            yield Part("layers over steps", "click a row for the layer's figures", maps=drawn)
    if "steps" in wanted:
        yield steps.table(history, view) or Nothing("no step was completed")
    if not wanted or "events" in wanted:
        yield from _events(history, view, full=True)
    for name in ("parameters", "updates", "calls", *PROBES):
        if name in wanted or (not wanted and name != "updates" and getattr(history, name)):
            yield from _layers(history, name, view)


def _findings(history: RunHistory) -> Iterator[Block]:
    found, known = findings.with_steps(history)
    yield Found(found, known)
    yield Said(tuple(findings.verdict(history)), "findings")


def _events(history: RunHistory, view: View, *, full: bool) -> Iterator[Block]:
    if history.events:
        option = view.option("--table events")
        lines = findings.event_lines(history.events, full=full, option=option)
        yield Said(tuple(lines), "events", titled=True, listed=True)
    elif "events" in view.tables:
        yield Nothing("no events", "events")


def _layers(history: RunHistory, name: str, view: View) -> Iterator[Block]:
    """A table of layers, or that none were recorded, where it was asked for."""
    table = layers.table(history, name, view)
    if table:
        yield table
    elif name in view.tables:
        reasons = tuple(summary.without_calls(history)) if name == "calls" else ()
        yield Nothing(NOTHING.get(name, f"no {name} were recorded"), reasons=reasons)
