"""The parameters of a report as rows, and every column that they can show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.records.modules import ParameterStats
from gradscope.records.tensors import TensorStats
from gradscope.reporters.tables.call_columns import MISSING, as_gradient, tone
from gradscope.reporters.tables.columns import (
    Column,
    figure,
    nonfinite,
    number_remarks,
    placed,
    statistics_columns,
    words,
)
from gradscope.typeset.numbers import count, shape, share
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
    """A parameter, its footnote's mark, and the number of equal ones that the row represents."""

    stats: ParameterStats
    mark: str = ""
    times: int = 1

    @property
    def about(self) -> str:
        """The key of the parameter's row in a page."""
        return plain(self.stats.name)


Group = tuple[ParameterRow, ...]


def with_marks(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """Return the rows with the marks of their footnotes, and the footnotes."""
    marks, notes = number_remarks([_remarks(group[0].stats) for group in groups])
    return [(replace(g[0], mark=mark),) for g, mark in zip(groups, marks, strict=True)], notes


def _remarks(parameter: ParameterStats) -> list[str]:
    remarks = []
    if parameter.in_optimizer is False and parameter.requires_grad:
        remarks.append("not in the optimizer: no step will move it")
    if parameter.aliases:
        remarks.append(f"shared parameter, also {', '.join(map(plain, parameter.aliases))}")
    return remarks


def _ratio(row: ParameterRow) -> float | None:
    norm, gradient = row.stats.value.norm, row.stats.gradient
    if not norm or gradient is None or gradient.norm is None or nonfinite(gradient):
        return None
    return gradient.norm / norm


def _label(row: ParameterRow) -> str:
    times = f" ×{row.times}" if row.times > 1 else ""
    return plain(row.stats.name) + times + (f" {row.mark}" if row.mark else "")


def _facts() -> Iterator[Column[ParameterRow]]:
    yield words("name", lambda row: row.stats.name, _label, wraps=True)
    yield words("aliases", lambda row: ", ".join(row.stats.aliases))
    sizes: Column[ParameterRow] = words(
        "shape", lambda row: shape(row.stats.shape), ascending=False
    )
    yield replace(sizes, rank=lambda row: row.stats.value.numel)
    yield words("dtype", lambda row: row.stats.value.dtype)
    yield words("requires_grad", lambda row: row.stats.requires_grad)
    yield words("in_optimizer", lambda row: row.stats.in_optimizer)
    yield words("has_gradient", lambda row: row.stats.gradient is not None)
    yield figure("numel", lambda row: row.stats.value.numel, count)
    yield figure("ratio", _ratio)
    yield figure("update", lambda row: row.stats.update_ratio)
    yield figure("update_rms", lambda row: row.stats.update_rms)
    yield figure("effective_lr", lambda row: row.stats.effective_lr)
    yield figure("cosine", lambda row: row.stats.cosine)
    yield figure("decay", lambda row: row.stats.decay_share, share)
    yield figure("momentum", lambda row: row.stats.m_norm)
    yield figure("v_norm", lambda row: row.stats.v_norm)
    yield figure("v_spread", lambda row: row.stats.v_spread)
    yield figure("spectral_norm", lambda row: row.stats.spectral_norm)
    yield figure("stable_rank", lambda row: row.stats.stable_rank)


def _register() -> dict[str, Column[ParameterRow]]:
    def absent(row: ParameterRow) -> str:
        return MISSING if row.stats.requires_grad else FROZEN

    def value(row: ParameterRow) -> TensorStats:
        return row.stats.value

    def gradient(row: ParameterRow) -> TensorStats | None:
        return row.stats.gradient

    values = statistics_columns("", value, lambda row: "", tone)
    norm, *others = statistics_columns("grad_", gradient, absent, tone)
    found = [*_facts(), *values, as_gradient(norm, "grad"), *others]
    return {column.key: placed(column, _KEEP, USUAL) for column in found}


COLUMNS = _register()
#: Columns of csv: all except those that repeat others.
EXACT = tuple(key for key in COLUMNS if not key.endswith(("zero_count", "nonfinite")))
