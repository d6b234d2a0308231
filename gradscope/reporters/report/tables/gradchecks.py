"""Gradient checks → one table: each input and parameter, with its derivative both ways."""

from __future__ import annotations

from collections import Counter

from gradscope.records.full_samples import GradientCheck
from gradscope.records.report import Report
from gradscope.reporters.labels import label
from gradscope.reporters.report._view import View
from gradscope.typeset.numbers import NOT_THERE, number
from gradscope.typeset.tables import KEEP, Cell, Heading, Table
from gradscope.typeset.text import plain

_TONES = {"right": "good", "wrong": "bad", "non-deterministic": "bad", "kink": "warn"}
_COLUMNS = (
    Heading("layer", right=False, wraps=True),
    Heading("type", right=False, keep=KEEP - 30),
    Heading("by", right=False),
    Heading("verdict", right=False),
    Heading("backward", keep=KEEP - 10),
    Heading("differences", keep=KEEP - 10),
    Heading("note", right=False, keep=KEEP - 8, prose=True),
)
_LEGEND = (
    "backward, differences: the derivative in one random direction, by the layer's backward and by"
    " finite differences, in float64"
)


def gradient_checks(report: Report, view: View) -> Table | None:
    """A row for each derivative that was checked."""
    checks = report.gradient_checks
    if not checks:
        return None
    noted = any(check.note for check in checks)
    columns = _COLUMNS if noted else _COLUMNS[:-1]
    rows = tuple(_row(check)[: len(columns)] for check in checks)
    counts = Counter(check.verdict for check in checks)
    caption = ", ".join(f"{many} {verdict}" for verdict, many in counts.items())
    return Table("gradient checks", columns, rows, plain(caption), (_LEGEND,))


def _row(check: GradientCheck) -> tuple[Cell, ...]:
    slopes = (check.backward, check.differences)
    return (
        Cell(label(check.name, check.call)),
        Cell(plain(check.type)),
        Cell(plain(check.input) or NOT_THERE),
        Cell(plain(check.verdict), _TONES.get(check.verdict, "warn")),
        *(Cell(NOT_THERE if slope is None else number(slope)) for slope in slopes),
        Cell(plain(check.note or "")),
    )
