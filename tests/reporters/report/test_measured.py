"""Depth, bars, costs, histograms, and means that are nothing but rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradscope import plugins
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.full_samples import Histogram
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats
from gradscope.reporters.tables import columns, report_tables
from gradscope.reporters.views import View

csv = plugins.load("gradscope.reporters.report", "csv")
markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

Sample = Callable[[str], Report]

HISTOGRAM = Histogram("fc1", "activation", "", 20, 0, -2, (1, 0, 4), (0, 2, 8), 3, 1, 1)
TABLE = """\
histogram of fc1 activation  20 values · 15.0 % zero · 1 nan · 1 inf
|x| from  negative          positive
──────────────────────────────────────────────────
  0.2500         1  █▌
  0.5000                           2  ███
   1.000         4  ██████         8  ████████████
each row holds |x| up to the next one's: a factor of 2
"""


def lines(text: str, title: str) -> list[str]:
    """A table's lines in a text."""
    found = text.splitlines()
    start = next(i for i, line in enumerate(found) if line.startswith(title))
    end = next((i for i in range(start, len(found)) if not found[i]), len(found))
    return found[start:end]


def column(report: Report, view: View, key: str) -> list[str]:
    table = report_tables.calls(report, view)
    place = [c.key for c in table.columns].index(key)
    return [row[place].text for row in table.rows]


def measured(report: Report) -> Report:
    calls = [
        replace(call, parameters=1000 * i, flops=10**i, seconds=0.001 * i)
        for i, call in enumerate(report.calls)
    ]
    return replace(report, calls=tuple(calls))


@pytest.mark.parametrize(("depth", "names"), [(0, {""}), (1, 1), (2, 2)])
def test_depth_is_that_of_the_dots_in_a_name(depth, names, sample: Sample) -> None:
    report = sample("resnet")
    kept = {c.name for c in report.calls if (c.name.count(".") + 1 if c.name else 0) <= depth}
    assert depth or kept == names
    table = report_tables.calls(report, View(depth=depth))
    assert table.caption == f"down to depth {depth}"
    assert len(column(report, View(depth=depth), "layer")) == sum(
        c.name in kept for c in report.calls
    )
    owners = {p.name.rpartition(".")[0] for p in report.parameters}
    shown = report_tables.parameters(report, View(depth=depth)).rows
    assert len(shown) == sum(p.name.rpartition(".")[0] in owners & kept for p in report.parameters)
    text = csv.render(report, View(depth=depth))
    assert {line.split(",")[0] for line in text.splitlines()[1:]} == kept


def test_a_table_without_a_row_at_this_depth_leaves_no_trace(sample: Sample) -> None:
    assert "\nparameters" not in terminal.render(sample("resnet"), View(depth=0))
    assert "### Parameters" not in markdown.render(sample("resnet"), View(depth=0))


def test_bars_stand_beside_their_column_on_a_log_scale(sample: Sample) -> None:
    report = sample("small")
    table = report_tables.calls(report, View(bar="norm"))
    keys = [heading.key for heading in table.columns]
    place = keys.index("norm")
    assert keys[place + 1] == "log scale"
    assert "log scale: of norm, by magnitude" in table.legend
    sizes = [row[place].text for row in table.rows]
    bars = [row[place + 1].text for row in table.rows]
    pairs = [(float(size), len(bar)) for size, bar in zip(sizes, bars, strict=True) if bar]
    assert [n for _, n in sorted(pairs)] == sorted(n for _, n in pairs)
    assert max(n for _, n in pairs) == 8


def test_bars_of_a_column_that_nobody_else_asked_for(sample: Sample) -> None:
    keys = [c.key for c in report_tables.calls(sample("small"), View(bar="max")).columns]
    assert keys[keys.index("max") + 1] == "log scale"
    view = View(columns=("norm",), bar="grad_out")
    keys = [c.key for c in report_tables.calls(sample("small"), view).columns]
    assert keys == ["layer", "norm", "grad_out", "log scale"]


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (View(bar="grad_ou"), "unknown column `grad_ou`"),
        (View(bar="type"), "the column holds no numbers"),
        (View(depth=-1), "`--depth -1` is not a depth"),
    ],
)
def test_what_cannot_be_is_refused(view: View, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        report_tables.check(view)


def test_what_was_measured_is_shown(sample: Sample) -> None:
    report = measured(sample("small"))
    assert column(report, View(), "flops") == ["1", "10", "100", "1.000 k", "10.00 k"]
    assert column(report, View(), "time") == ["0 s", "1.000 ms", "2.000 ms", "3.000 ms", "4.000 ms"]
    assert column(report, View(columns=("params",)), "params")[-1] == "4,000"
    text = terminal.render(report, View(columns=("flops",)))
    assert "flops: of forward, calls inside included" in text
    assert "time: of forward" not in text
    assert record_json.loads(record_json.dumps(report), Report) == report


def test_what_was_not_measured_is_said(sample: Sample) -> None:
    table = report_tables.calls(sample("small"), View(columns=("flops",)))
    assert "flops: not measured: `gradscope inspect MODEL --columns +flops` does" in table.legend
    keys = [c.key for c in report_tables.calls(sample("small"), View(columns=("all",))).columns]
    assert not {"flops", "time"} & set(keys)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (View(), False),
        (View(columns=("all",)), False),
        (View(columns=("norm", "+flops")), True),
        (View(sort="time:asc"), True),
        (View(bar="time"), True),
    ],
)
def test_when_a_run_of_its_own_is_needed(view: View, wanted: bool) -> None:
    assert report_tables.measured(view) is wanted


def test_a_histogram(sample: Sample) -> None:
    report = replace(sample("small"), histograms=(HISTOGRAM,))
    text = terminal.render(report, View())
    assert "\n".join(lines(text, "histogram")) + "\n" == TABLE
    assert "### Histogram of fc1 activation (20 values" in markdown.render(report, View())
    assert record_json.loads(record_json.dumps(report), Report) == report


def test_a_wide_histogram_has_few_rows_that_start_at_multiples(sample: Sample) -> None:
    wide = Histogram("", "gradient", "", 65, 0, -33, (), tuple([1] * 65))
    wide = replace(wide, negative=(0,) * 65)
    found = lines(terminal.render(replace(sample("small"), histograms=(wide,)), View()), "hist")
    assert found[0] == "histogram of (root) gradient  65 values"
    assert found[-1].endswith("a factor of 16")
    rows = found[3:-1]
    assert len(rows) <= 20
    assert int(rows[0].split()[1]) == 1  # 2**-36 … 2**-33, of which one is there
    assert sum(int(row.split()[1]) for row in rows) == 65


def test_the_title_says_what_it_is_of(sample: Sample) -> None:
    from gradscope.reporters.tables.charts import histogram_title

    assert (
        histogram_title(replace(HISTOGRAM, call=1, path="w", kind="gradient"))
        == "fc1 #1 → w gradient"
    )
    assert (
        histogram_title(replace(HISTOGRAM, call=None, path="fc1.bias", kind="value")) == "fc1.bias"
    )
    assert histogram_title(replace(HISTOGRAM, call=None, path="fc1.bias", kind="gradient")) == (
        "fc1.bias gradient"
    )


MEANS = {
    "far below the values": ("float32", 10_000, -1.63e-9, 1.0, "~0"),
    "four roundings": ("float32", 10_000, 4 * 2.0**-23, 1.0, "~0"),
    "more than that": ("float32", 10_000, 6e-7, 1.0, "6.000e-07"),
    "small values": ("float32", 10_000, 1e-9, 1e-9, "1.000e-09"),
    "zero itself": ("float32", 10_000, 0.0, 1.0, "0"),
    "of double precision": ("float64", 10_000, -1.63e-9, 1.0, "-1.630e-09"),
    "half floats, many": ("bfloat16", 1_000_000, 1e-4, 1.0, "0.0001000"),
    "half floats, few": ("bfloat16", 16, 1e-4, 1.0, "~0"),
    "one value": ("float32", 1, 1e-9, 1e-9, "1.000e-09"),
    "integers": ("int64", 100, 1e-9, 1.0, "1.000e-09"),
}


@pytest.mark.parametrize(("dtype", "n", "mean", "rms", "text"), MEANS.values(), ids=MEANS)
def test_a_mean_that_is_rounding(dtype, n, mean, rms, text) -> None:
    stats = TensorStats((n,), dtype, n, rms * n**0.5, mean, rms, -rms, rms, 0, 0, 0)
    assert columns.statistic(stats, "mean") == text


def test_the_sign_for_rounding_is_explained_where_it_stands(sample: Sample) -> None:
    report = sample("small")
    call = report.calls[1]
    output = call.outputs[0]
    noise = replace(output.activation, mean=1e-12 * (output.activation.norm or 1.0))
    call = replace(call, outputs=(replace(output, activation=noise), *call.outputs[1:]))
    report = replace(report, calls=(report.calls[0], call, *report.calls[2:]))
    assert "~0: zero, within the rounding of the values" in terminal.render(report, View())
    assert "~0" not in terminal.render(sample("small"), View())
    assert "~0" not in terminal.render(report, View(columns=("norm",)))
