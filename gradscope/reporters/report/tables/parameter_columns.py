"""The parameters of a report as rows, and every column that they can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import TensorStats
from gradscope.reporters.report.tables import statistics
from gradscope.reporters.report.tables.call_columns import MISSING, as_gradient, tone
from gradscope.reporters.report.tables.columns import Column, Scalar, placed
from gradscope.reporters.report.tables.footnotes import number_remarks
from gradscope.typeset.numbers import count, number, shape
from gradscope.typeset.tables import KEEP
from gradscope.typeset.text import plain

FROZEN = "frozen"

USUAL = ("name", "shape", "norm", "nonfinite", "grad", "ratio", "update")
_KEEP = {
    **{"name": KEEP, "grad": KEEP, "nonfinite": KEEP, "norm": KEEP - 1},
    **{"update": 70, "shape": 60, "ratio": 40},
}


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """A parameter, its footnote's mark, and how many like it the row stands for."""

    stats: ParameterStats
    mark: str = ""
    times: int = 1

    @property
    def about(self) -> str:
        """The parameter: what a page finds the row by."""
        return plain(self.stats.name)


Group = tuple[ParameterRow, ...]


def with_marks(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """The rows with their footnotes' marks, and the footnotes."""
    marks, notes = number_remarks([_remarks(group[0].stats) for group in groups])
    return [(replace(g[0], mark=mark),) for g, mark in zip(groups, marks, strict=True)], notes


def _remarks(parameter: ParameterStats) -> list[str]:
    remarks = []
    if parameter.in_optimizer is False and parameter.requires_grad:
        remarks.append("not in the optimizer: no step will move it")
    if parameter.aliases:
        remarks.append(f"shared parameter, also {', '.join(map(plain, parameter.aliases))}")
    return remarks


def _value(row: ParameterRow) -> TensorStats:
    return row.stats.value


def _gradient(row: ParameterRow) -> TensorStats | None:
    return row.stats.gradient


def _absent(row: ParameterRow) -> str:
    return MISSING if row.stats.requires_grad else FROZEN


def _ratio(row: ParameterRow) -> float | None:
    norm, gradient = row.stats.value.norm, row.stats.gradient
    if not norm or gradient is None or gradient.norm is None or statistics.nonfinite(gradient):
        return None
    return gradient.norm / norm


def _label(row: ParameterRow) -> str:
    times = f" ×{row.times}" if row.times > 1 else ""
    return plain(row.stats.name) + times + (f" {row.mark}" if row.mark else "")


def _fact(
    key: str,
    value: Callable[[ParameterRow], Scalar],
    text: Callable[[ParameterRow], str] | None = None,
    *,
    number: bool = False,
) -> Column[ParameterRow]:
    def show(row: ParameterRow) -> str:
        exact = value(row)
        return plain(
            "" if exact is None else str(exact).lower() if isinstance(exact, bool) else str(exact)
        )

    return Column(
        key, value, text or show, value, right=number, ascending=not number, wraps=key == "name"
    )


def _facts() -> Iterator[Column[ParameterRow]]:
    def figure(x: float | None) -> str:
        return "" if x is None else number(x)

    yield _fact("name", lambda row: row.stats.name, _label)
    yield _fact("aliases", lambda row: ", ".join(row.stats.aliases))
    yield replace(
        _fact("shape", lambda row: shape(row.stats.shape)),
        rank=lambda row: _value(row).numel,
        ascending=False,
    )
    yield _fact("dtype", lambda row: row.stats.value.dtype)
    yield _fact("requires_grad", lambda row: row.stats.requires_grad)
    yield _fact("in_optimizer", lambda row: row.stats.in_optimizer)
    yield _fact("has_gradient", lambda row: row.stats.gradient is not None)
    numel = _fact("numel", lambda row: row.stats.value.numel, number=True)
    yield replace(numel, text=lambda row: count(row.stats.value.numel))
    yield _fact("ratio", _ratio, lambda row: figure(_ratio(row)), number=True)
    yield _fact(
        "update",
        lambda row: row.stats.update_ratio,
        lambda row: figure(row.stats.update_ratio),
        number=True,
    )


def _register() -> dict[str, Column[ParameterRow]]:
    values = statistics.columns("", _value, lambda row: "", tone)
    norm, *others = statistics.columns("grad_", _gradient, _absent, tone)
    found = [*_facts(), *values, as_gradient(norm, "grad"), *others]
    return {column.key: placed(column, _KEEP, USUAL) for column in found}


COLUMNS = _register()
#: What csv holds: all but what other columns say already.
EXACT = tuple(key for key in COLUMNS if not key.endswith(("zero_count", "nonfinite")))
