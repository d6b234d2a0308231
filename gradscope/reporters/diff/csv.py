"""A comparison as CSV: a row for each output of a call, each parameter, or each finding."""

from __future__ import annotations

from dataclasses import fields

from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.report import Finding
from gradscope.reporters.csv_text import Field, written
from gradscope.reporters.diff._view import DiffView
from gradscope.reporters.finding_lines import ordered
from gradscope.typeset.numbers import shape

suffix = ".csv"

_DIFF = tuple(f.name for f in fields(TensorDiff))
CALLS = (
    *("name", "name_b", "type", "call", "path", "shape"),
    *(f"activation_{name}" for name in _DIFF),
    *(f"gradient_{name}" for name in _DIFF),
)
PARAMETERS = (
    *("name", "name_b", "shape", "update_ratio_a", "update_ratio_b"),
    *(f"value_{name}" for name in _DIFF),
    *(f"gradient_{name}" for name in _DIFF),
)
FINDINGS = tuple(f.name for f in fields(Finding))


def render(report: DiffReport, view: DiffView) -> str:
    """One table: the calls, unless the view asks for another."""
    if view.table == "findings":
        found = ordered(report.findings)
        return written(FINDINGS, [[getattr(one, name) for name in FINDINGS] for one in found])
    if view.table == "parameters":
        return written(PARAMETERS, parameter_rows(report))
    return written(CALLS, call_rows(report))


def call_rows(report: DiffReport) -> list[list[Field]]:
    """By ``CALLS``."""
    return [_call(row) for row in report.calls]


def parameter_rows(report: DiffReport) -> list[list[Field]]:
    """By ``PARAMETERS``."""
    return [_parameter(row) for row in report.parameters]


def _call(row: CallDiff) -> list[Field]:
    head: list[Field] = [row.name, row.name_b, row.type, row.call, row.path, shape(row.shape)]
    return [*head, *_diff(row.activation), *_diff(row.gradient)]


def _parameter(row: ParameterDiff) -> list[Field]:
    ratios = row.update_ratios or (None, None)
    head: list[Field] = [row.name, row.name_b, shape(row.shape), *ratios]
    return [*head, *_diff(row.value), *_diff(row.gradient)]


def _diff(diff: TensorDiff | None) -> list[Field]:
    return [None if diff is None else getattr(diff, name) for name in _DIFF]
