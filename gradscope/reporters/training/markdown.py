"""A training run as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradscope.records.history import RunHistory
from gradscope.reporters.markdown_blocks import found_items, prose, table_block
from gradscope.reporters.markdown_text import escaped
from gradscope.reporters.report import View
from gradscope.reporters.training.sentences import events, findings, summary
from gradscope.reporters.training.tables import layers, step_metrics, steps
from gradscope.reporters.training.tables.naming import qualified
from gradscope.typeset.tables import Table

suffix = ".md"


def render(history: RunHistory, view: View) -> str:
    """Every table at its full width."""
    return "\n\n".join(block for block in _blocks(qualified(history), view) if block) + "\n"


def _blocks(history: RunHistory, view: View) -> Iterator[str]:
    (script, *first), *others = summary.facts(history)
    yield f"## {escaped(script)}"
    facts = [prose(summary.end(history)), *(escaped(" · ".join(f)) for f in (first, *others))]
    yield _items([*facts, *map(escaped, summary.notes(history))])
    wanted = view.table
    if wanted is None:
        yield _table(step_metrics.table(history, None)) or "No step was completed."
    if wanted == "steps":
        yield _table(steps.table(history, view)) or "No step was completed."
    if wanted in (None, "findings"):
        yield _findings(history)
    if wanted in (None, "events") and history.events:
        yield "### Events\n\n" + _items(
            map(prose, events.lines(history.events, full=wanted is not None))
        )
    elif wanted == "events":
        yield "No events."
    if wanted in (None, "parameters"):
        yield _table(layers.table(history, "parameters", view))
    if wanted == "calls":
        yield _table(layers.table(history, "calls", view))
    if wanted in ("parameters", "calls") and not layers.table(history, wanted, view):
        yield f"No {wanted} were recorded."
        if wanted == "calls":
            yield _items(map(escaped, summary.without_calls(history)))


def _findings(history: RunHistory) -> str:
    found, known = findings.with_steps(history)
    parts = ["### Findings", "\n".join(found_items(found, known))] if found else []
    judged = [prose(line) for line in findings.verdict(history)]
    return "\n\n".join([*parts, *judged])


def _table(table: Table | None) -> str:
    return table_block(table) if table else ""


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
