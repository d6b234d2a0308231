"""Invariants of every printed table, checked on the text: nothing cut, and counts add up."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from gradscope import plugins
from gradscope.records.report import Report
from gradscope.reporters.views import View
from gradscope.typeset.numbers import number
from gradscope.typeset.text import plain

csv = plugins.load("gradscope.reporters.report", "csv")
markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

WIDTHS = [20, 40, 60, 80, 100, 120, 160, 200, None]


def squeezed(text: str) -> str:
    """The text without its line breaks and indents, so that a broken name is whole again."""
    return re.sub(r"\s+", "", text)


def section(text: str, title: str) -> str:
    """A table's block."""
    return next(b for b in text.split("\n\n") if b.startswith(title))


def rows_of(block: str) -> list[str]:
    """The block's rows: what stands between the rule and the remarks."""
    lines = block.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("─")) + 1
    remarks = ("hidden at", "none:", "–:", "frozen:", "+n ", "¹", "²", "³")
    end = (i for i, line in enumerate(lines) if i >= start and line.startswith(remarks))
    return lines[start : next(end, len(lines))]


def cells(row: str) -> list[str]:
    return re.split(r" {2,}", row.strip())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_name_is_cut(report: Report, width: int | None) -> None:
    text = terminal.render(report, View(width=width))
    lines = [squeezed(line) for line in text.splitlines()]
    whole, joined = "\n".join(lines), "".join(lines)
    for parameter in report.parameters:
        parts = [squeezed(part) for part in re.findall(r"[^.]*\.+|[^.]+$", plain(parameter.name))]
        # Each dotted part stands unbroken on one line, and the parts in order make the name.
        assert all(part in whole for part in parts)
    for call in report.calls:
        for part in re.findall(r"[^.]+", plain(call.name)):
            assert squeezed(part) in joined
    assert "…" not in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [w for w in WIDTHS if w is None or w >= 60])
def test_no_number_is_cut(report: Report, width: int | None) -> None:
    text = terminal.render(report, View(width=width))
    words = set(re.findall(r"\S+", text))
    for parameter in report.parameters:
        if parameter.gradient is not None and parameter.gradient.norm is not None:
            assert number(parameter.gradient.norm) in words
    for call in report.calls:
        for output in call.outputs:
            if output.gradient is not None and output.gradient.norm is not None:
                assert number(output.gradient.norm) in words


@pytest.mark.parametrize("width", [w for w in WIDTHS if w is not None and w >= 60])
def test_lines_fit_the_terminal(report: Report, width: int) -> None:
    for line in terminal.render(report, View(width=width)).splitlines():
        assert cell_len(line) <= width, line


@pytest.mark.parametrize("width", [w for w in WIDTHS if w is None or w >= 60])
def test_columns_stand_straight(report: Report, width: int | None) -> None:
    """Right-aligned figures end in the same cell as their heading."""
    block = section(terminal.render(report, View(width=width)), "calls").splitlines()
    heading = block[1]
    end = cell_len(heading[: heading.index("grad_out") + len("grad_out")])
    for row in rows_of("\n".join(block)):
        for position, character in enumerate(row):
            if cell_len(row[:position]) == end:
                assert character == " ", row


def test_hidden_and_shown_columns_are_all_columns(report: Report) -> None:
    wide = section(terminal.render(report, View()), "calls").splitlines()[1].split()
    narrow = section(terminal.render(report, View(width=60)), "calls")
    shown = narrow.splitlines()[1].split()
    said = re.search(r"hidden at this width: (.*?) \(", " ".join(narrow.split()))
    hidden = said[1].split(", ") if said else []
    assert sorted(shown + hidden) == sorted(wide)


def test_every_call_and_every_output_has_a_row(report: Report) -> None:
    rows = rows_of(section(terminal.render(report, View()), "calls"))
    wanting = [[i for i in c.inputs if i.requires_grad or i.gradient] for c in report.calls]
    further = sum(len(inputs) for inputs in wanting if len(inputs) > 1)
    assert len(rows) == sum(max(1, len(c.outputs)) for c in report.calls) + further


def test_parameters_sum_to_the_total(sample: Callable[[str], Report]) -> None:
    view = View(table="parameters", columns=("numel",))
    text = terminal.render(sample("resnet"), view)
    rows = rows_of(section(text, "parameters"))
    total = sum(int(cells(row)[-1].replace(",", "")) for row in rows)
    assert f"{total:,} parameters (all trainable)" in text
    assert total == 11_689_512


def test_saved_bytes_of_leaves_sum_to_the_total(sample: Callable[[str], Report]) -> None:
    report = sample("resnet")
    text = terminal.render(report, View(columns=("type", "saved_bytes")))
    rows = [cells(row) for row in rows_of(section(text, "calls"))]
    containers = ("ResNet", "Sequential")
    leaves = [int(row[-1].replace(",", "")) for row in rows if row[1] not in containers]
    assert sum(leaves) == report.totals.saved_bytes


def test_the_caption_counts_the_rows(sample: Callable[[str], Report]) -> None:
    block = section(terminal.render(sample("resnet"), View(top=10)), "calls")
    assert block.startswith("calls  10 of 68 calls shown\n")
    assert len(rows_of(block)) == 10


def test_the_formats_agree(report: Report) -> None:
    """Terminal and markdown show the same cells, csv the figures that they round."""
    shown = section(terminal.render(report, View()), "calls")
    table = markdown.render(report, View()).partition("### Calls")[2].partition("### ")[0]
    marked = [line for line in table.splitlines() if line.startswith("| ")][2:]
    for row, line in zip(rows_of(shown), marked, strict=True):
        figures = [cell for cell in cells(row) if re.fullmatch(r"[-\d.e+]+", cell)]
        assert all(f" {figure} " in line for figure in figures)
    exact = csv.render(report, View(columns=("direction", "norm")))
    norms = [float(x) for x in re.findall(r",output,([^,\r]+)\r", exact)]
    assert {number(x) for x in norms} <= set(re.findall(r"\S+", shown))


def test_color_says_nothing_of_its_own(report: Report) -> None:
    colored = terminal.render(report, View(color=True, width=100))
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == terminal.render(report, View(width=100))
    assert "\x1b[" in colored


def test_nothing_unprintable_leaves(report: Report) -> None:
    for reporter in (terminal, markdown):
        text = reporter.render(report, View())
        assert text.replace("\n", "").replace("\u00a0", "").isprintable()
    assert csv.render(report, View()).replace("\r\n", "").isprintable()


@pytest.mark.slow
def test_no_line_ends_in_blanks(report: Report) -> None:
    for width in WIDTHS:
        lines = terminal.render(report, View(width=width)).splitlines()
        assert all(line == line.rstrip() for line in lines)


def test_these_checks_can_fail(sample: Callable[[str], Report]) -> None:
    """A name cut as a careless table would cut it is not found again."""
    text = terminal.render(sample("deep"), View(width=60)).replace("parametrizations.", "parametr…")
    assert "parametrizations" not in squeezed(section(text, "calls"))
