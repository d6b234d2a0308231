"""The gradients of several losses → one table: a row for each layer that they share."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.full_samples import SharedLayer, TaskGradients
from gradscope.records.report import Report
from gradscope.reporters.labels import label, some_names
from gradscope.reporters.report._view import View
from gradscope.typeset.numbers import NOT_THERE, count, number
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

#: So many layers that one loss only reaches are named.
_NAMES = 4


def tasks(report: Report, view: View) -> Table | None:
    """Norms by loss and cosines by pair; with ``top`` the layers where losses disagree most."""
    found = report.tasks
    if found is None:
        return None
    names = [plain(name) for name in found.tasks]
    columns = (
        Heading("layer", right=False, wraps=True),
        Heading("parameters", keep=KEEP - 40),
        *(Heading(f"grad {name}", keep=KEEP - 10 - i) for i, name in enumerate(names)),
        *(
            Heading(f"cos {names[a]}·{names[b]}", keep=KEEP - 20 - i)
            for i, (a, b) in enumerate(found.pairs)
        ),
    )
    layers = list(found.layers)
    if view.top is not None:
        layers = sorted(layers, key=_worst)[: view.top]
    rows = tuple(_row(layer) for layer in (found.total, *layers))
    return Table("tasks", columns, rows, "each loss separately", tuple(_legend(found)))


def _worst(layer: SharedLayer) -> float:
    return min((cosine for cosine in layer.cosines if cosine is not None), default=2.0)


def _row(layer: SharedLayer) -> tuple[Cell, ...]:
    name = "all that is shared" if layer.name is None else label(layer.name)
    return (
        Cell(name),
        Cell(count(layer.parameters)),
        *(Cell(number(norm)) for norm in layer.norms),
        *(Cell(*_cosine(cosine)) for cosine in layer.cosines),
    )


def _cosine(cosine: float | None) -> tuple[str, str]:
    """A cosine; one below zero, where a step for one loss undoes the other's, is a warning's."""
    if cosine is None:
        return NOT_THERE, ""
    return f"{cosine:.3f}", "warn" if cosine < 0 else ""


def _legend(found: TaskGradients) -> Iterator[str]:
    if not found.layers:
        yield "the losses share no parameter"
    yield "grad: norm of that loss's gradient at the parameters that several losses reach"
    yield "cos: 1 the same way, 0 at right angles, below 0 against each other"
    if found.alone:
        named = [f"{name or 'the model'} ({task})" for name, task in found.alone]
        yield f"reached by one loss only: {some_names(named, _NAMES)}"
