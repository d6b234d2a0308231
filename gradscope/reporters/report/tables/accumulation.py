"""Micro-batches that do not add up to the batch → one table: the layers that differ, and why."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.full_samples import Accumulation, AccumulationCause
from gradscope.records.report import Report
from gradscope.reporters.labels import label, some_names
from gradscope.reporters.report._view import View
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

#: So many layers are shown without a request for a number of them, and so many names of modules.
_ROWS, _NAMES = 10, 4
_COLUMNS = (
    Heading("layer", right=False, wraps=True),
    Heading("parameters", keep=KEEP - 20),
    Heading("difference"),
    Heading("because of", right=False, prose=True),
)


def accumulation(report: Report, view: View) -> Table | None:
    """The layers whose gradients differ, the most first; below it every cause."""
    found = report.accumulation
    if found is None or found.equal:
        return None
    differ = [layer for layer in found.layers if layer.error > found.tolerance]
    differ.sort(key=lambda layer: -layer.error)
    shown = differ[: _ROWS if view.top is None else view.top]
    rows = tuple(
        (
            Cell(label(layer.name)),
            Cell(count(layer.parameters)),
            Cell(number(layer.error), "bad"),
            Cell(", ".join(map(plain, layer.causes))),
        )
        for layer in shown
    )
    caption = f"{len(differ)} of {plural(len(found.layers), 'layer')} differ"
    return Table("accumulation", _COLUMNS, rows, caption, tuple(_legend(found)))


def verdict(report: Report) -> Line | None:
    """Whether micro-batches equal the batch, in one sentence."""
    found = report.accumulation
    if found is None:
        return None
    sizes = f"of {found.sizes[0]}" if len(set(found.sizes)) == 1 else "of " + _listed(found)
    parts = f"{plural(len(found.sizes), 'micro-batch', 'micro-batches')} {sizes}"
    measured = f"(largest relative difference {number(found.error)}, in {plain(found.dtype)})"
    if found.equal:
        text = f"the gradients of {parts} add up to those of the batch {measured}"
        return Line(text, "accumulation:", "good")
    text = f"the gradients of {parts} do not add up to those of the batch {measured}"
    return Line(text, "accumulation:", "warn")


def _listed(found: Accumulation) -> str:
    return f"{', '.join(map(str, found.sizes[:-1]))} and {found.sizes[-1]}"


def _legend(found: Accumulation) -> Iterator[str]:
    yield "difference: of the gradients, relative to that of the full batch"
    for cause in found.causes:
        yield f"{cause.kind}: {plain(cause.message)}{_names(cause)}; {plain(cause.advice)}"


def _names(cause: AccumulationCause) -> str:
    return f" ({some_names(map(label, cause.names), _NAMES)})" if cause.names else ""
