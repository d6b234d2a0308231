"""A training run as a page for a browser: its course in charts, and layers over steps as maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.records.history import RunHistory
from gradscope.reporters.page_parts import findings_part, said
from gradscope.reporters.report import View
from gradscope.reporters.training.charts import over_steps
from gradscope.reporters.training.sentences import events, findings, summary
from gradscope.reporters.training.tables import layers, step_metrics, steps
from gradscope.reporters.training.tables.naming import qualified
from gradscope.typeset.tables import Table

suffix = ".html"


def render(history: RunHistory, view: View) -> str:
    """The full page; ``view.table`` is one table alone."""
    return pages.render(page(history, view))


def page(history: RunHistory, view: View) -> Page:
    """What was run, and all its parts."""
    history = qualified(history)
    (title, *first), *further = summary.facts(history)
    facts, notes = [first, *further], list(summary.notes(history))
    return Page("run", title, facts, notes, list(_parts(history, view)), history.run.versions)


def _parts(history: RunHistory, view: View) -> Iterator[Part]:
    wanted = view.table
    yield Part("end", items=said(summary.end(history)))
    if wanted in (None, "findings"):
        yield _findings(history)
    if wanted is None:
        table = step_metrics.table(history, None)
        if table:
            yield Part("step metrics", table.caption, panels=over_steps.panels(history))
            yield Part("step metrics in figures", table=table, remarks=table.legend)
        drawn = tuple(over_steps.maps(history))
        if drawn:
            yield Part("layers over steps", "click a row for the layer's figures", maps=drawn)
    if wanted == "steps":
        yield _table(steps.table(history, view), "no step was completed")
    if wanted in (None, "events") and (history.events or wanted):
        found = items(events.lines(history.events))
        yield Part("events", items=found, remarks=() if found else ("no events",))
    for name in ("parameters", "calls"):
        if wanted == name or (wanted is None and getattr(history, name)):
            reasons = summary.without_calls(history) if name == "calls" else ()
            otherwise = (f"no {name} were recorded", *reasons)
            yield _table(layers.table(history, name, view), *otherwise)


def _findings(history: RunHistory) -> Part:
    found, known = findings.with_steps(history)
    judged = said(*findings.verdict(history))
    part = findings_part(found, known) if found else Part("findings")
    return replace(part, items=(*part.items, *judged))


def _table(table: Table | None, *otherwise: str) -> Part:
    return table_part(table) if table else Part("nothing", remarks=otherwise)
