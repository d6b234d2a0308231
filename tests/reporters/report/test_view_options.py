"""Sorting, choosing and counting: what a view asks for is what stands there, or is refused."""

from __future__ import annotations

import csv as csv_module
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from gradscope import plugins
from gradscope.errors import OptionError
from gradscope.records.report import Report
from gradscope.records.transformer import ResidualCall
from gradscope.reporters.tables import report_tables
from gradscope.reporters.tables.call_columns import COLUMNS
from gradscope.reporters.views import View

csv = plugins.load("gradscope.reporters.report", "csv")
terminal = plugins.load("gradscope.reporters.report", "terminal")

Sample = Callable[[str], Report]


def column(report: Report, view: View, key: str) -> list[str]:
    table = report_tables.calls(report, view)
    place = [c.key for c in table.columns].index(key)
    return [row[place].text for row in table.rows]


def test_numbers_descend_and_what_has_no_value_comes_last(sample: Sample) -> None:
    layers = column(sample("small"), View(sort="grad_in"), "layer")
    assert layers == ["drop ¹", "fc2", "out", "(root)", "fc1"]


def test_a_direction_can_be_given_and_missing_values_stay_last(sample: Sample) -> None:
    layers = column(sample("small"), View(sort="grad_in:asc"), "layer")
    assert layers == ["fc2", "out", "drop ¹", "(root)", "fc1"]


def test_names_ascend_as_a_reader_counts(sample: Sample) -> None:
    report = sample("small")
    calls = tuple(
        replace(call, name=name, notes=())
        for call, name in zip(report.calls, ["l10", "l9", "a", "l1", "b"], strict=True)
    )
    report = replace(report, calls=calls)
    assert column(report, View(sort="name"), "layer") == ["a", "b", "l1", "l9", "l10"]
    assert column(report, View(sort="name:desc"), "layer") == ["l10", "l9", "l1", "b", "a"]


def test_the_order_of_execution_is_the_default(sample: Sample) -> None:
    plain = column(sample("resnet"), View(), "layer")
    assert plain == column(sample("resnet"), View(sort="order"), "layer")
    assert plain[0] == "(root)"


def test_zeros_sort_by_their_share(sample: Sample) -> None:
    report = sample("small")
    assert column(report, View(sort="zeros", top=2), "layer") == ["(root)", "out"]


def test_rows_of_one_call_stay_together(sample: Sample) -> None:
    layers = column(sample("outputs"), View(sort="norm:asc"), "layer")
    start = layers.index("backbone.attention → 0 ¹ ²")
    assert layers[start : start + 4] == [layers[start], "  → 1", "  ← query", "  ← key"]


def test_the_sorted_column_is_shown(sample: Sample) -> None:
    heading = terminal.render(sample("small"), View(sort="max", width=60)).split("calls  sorted")[1]
    assert heading.splitlines()[1].split()[-1] == "max"


def test_a_page_sorted_by_a_column_of_calls_shows_the_residual_stream_too(sample: Sample) -> None:
    block = ResidualCall("fc1", 0, "float32", 1.0, 3.0, 4.0, 4.0, None, None)
    report = replace(sample("small"), residual=(block,))
    (table,) = report_tables.transformer_tables(report, View(sort="grad_in"))
    assert [cell.text for row in table.rows for cell in row[:1]] == ["fc1"]
    assert "grad_in" not in [heading.key for heading in table.columns]


def test_parameters_are_sorted_alike_where_they_have_the_column(sample: Sample) -> None:
    report = sample("small")
    names = [row[0].text for row in report_tables.parameters(report, View(sort="norm")).rows]
    assert names[0] == "fc1.weight"
    untouched = [
        row[0].text for row in report_tables.parameters(report, View(sort="grad_out")).rows
    ]
    assert untouched == [row[0].text for row in report_tables.parameters(report, View()).rows]


def test_asked_columns_are_never_hidden(sample: Sample) -> None:
    columns = ("norm", "mean", "std", "min", "max", "grad_fn", "saved_bytes")
    text = terminal.render(sample("resnet"), View(width=40, columns=columns, table="calls"))
    heading = next(line for line in text.splitlines() if line.startswith("layer"))
    assert heading.split() == ["layer", *columns]
    assert "hidden at this width" not in text


def test_columns_can_come_on_top_of_the_usual_ones(sample: Sample) -> None:
    usual = [c.key for c in report_tables.calls(sample("small"), View()).columns]
    more = [
        c.key for c in report_tables.calls(sample("small"), View(columns=("+min", "+norm"))).columns
    ]
    assert more == [*usual, "min"]


def test_all_shows_everything_once(sample: Sample) -> None:
    keys = [c.key for c in report_tables.calls(sample("small"), View(columns=("all",))).columns]
    assert len(keys) == len(set(keys))
    assert {"min", "zero_count", "saved_bytes", "grad_in_max", "dtype", "aliases"} <= set(keys)
    assert "grad_norm" not in keys


@pytest.mark.slow
@pytest.mark.parametrize("key", COLUMNS)
def test_every_column_can_be_shown_and_sorted(key: str, samples: dict[str, Any]) -> None:
    view = View(columns=(key,), sort=key, table="calls")
    report_tables.check(view)
    for build in samples.values():
        assert key in terminal.render(build(), view)
        assert key in csv.render(build(), view)


@pytest.mark.parametrize(
    ("view", "message", "help"),
    [
        (View(columns=("grad_uot",)), "unknown column `grad_uot`", "did you mean `grad_out`?"),
        (View(sort="nrom"), "unknown column `nrom`", "did you mean `norm`?"),
        (View(sort="norm:down"), "unknown direction `down`", "write `:asc` or `:desc`"),
        (View(top=0), "`--top 0` would show nothing", "give 1 or more"),
        (View(table="call"), "unknown table `call`", "did you mean `calls`?"),
        (View(table="calls", sort="update"), "unknown column `update`", None),
    ],
)
def test_what_is_not_there_is_refused(view: View, message: str, help: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        report_tables.check(view)
    problem = caught.value.problems[0]
    assert problem.message.startswith(message)
    if help:
        assert problem.help == help


def test_an_unknown_column_lists_the_columns() -> None:
    with pytest.raises(OptionError, match="unknown column") as caught:
        report_tables.check(View(columns=("zzz",)))
    assert "norm" in caught.value.render()


def read(text: str) -> list[dict[str, str]]:
    return list(csv_module.DictReader(StringIO(text, newline="")))


def test_csv_has_a_row_for_each_call_direction_and_path(sample: Sample) -> None:
    report = sample("outputs")
    rows = read(csv.render(report, View()))
    wanted = [
        (call.name, str(call.call), direction, tensor.path)
        for call in report.calls
        for direction, tensors in (("input", call.inputs), ("output", call.outputs))
        for tensor in tensors
    ]
    found = [(r["name"], r["call"], r["direction"], r["path"]) for r in rows if r["direction"]]
    assert found == wanted
    assert [r["name"] for r in rows if not r["direction"]] == ["logger"]


def test_csv_rows_can_be_told_apart_whatever_columns_are_asked_for(sample: Sample) -> None:
    rows = read(csv.render(sample("outputs"), View(columns=("norm",))))
    assert list(rows[0]) == ["name", "call", "direction", "path", "norm"]
    keys = [tuple(row.values())[:4] for row in rows]
    assert len(keys) == len(set(keys))


def test_csv_keeps_every_digit(sample: Sample) -> None:
    report = sample("small")
    rows = [r for r in read(csv.render(report, View())) if r["direction"] == "output"]
    for call, row in zip(report.calls, rows, strict=True):
        assert float(row["norm"]) == call.outputs[0].activation.norm
        gradient = call.outputs[0].gradient
        assert gradient is not None
        assert float(row["grad_norm"]) == gradient.norm
        assert int(row["zeros"]) == call.outputs[0].activation.zeros


def test_csv_of_parameters(sample: Sample) -> None:
    rows = read(csv.render(sample("small"), View(table="parameters")))
    assert [row["name"] for row in rows] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert [row["requires_grad"] for row in rows] == ["false", "true", "true", "true"]
    assert [row["grad"] for row in rows][0::3] == ["", ""]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0"])
def test_csv_runs_no_formula(name: str, sample: Sample) -> None:
    report = sample("small")
    evil = replace(report, calls=(replace(report.calls[0], name=name, type=name),))
    row = read(csv.render(evil, View()))[0]
    assert row["name"] == row["type"] == f"'{name}"
    assert not row["mean"].startswith("'")  # a negative number is a number
