"""Invariants of every page on a run, checked on the text: nothing cut, nothing injected."""

from __future__ import annotations

import json
import re
from csv import reader

import pytest
from reporters.run_samples import SAMPLES
from rich.cells import cell_len

from gradscope import plugins
from gradscope.records.training import RunHistory
from gradscope.reporters.run import qualified
from gradscope.reporters.views import View
from gradscope.typeset.numbers import number
from gradscope.typeset.text import plain

csv = plugins.load("gradscope.reporters.training", "csv")
run_json = plugins.load("gradscope.reporters.training", "json")
markdown = plugins.load("gradscope.reporters.training", "markdown")
terminal = plugins.load("gradscope.reporters.training", "terminal")

WIDTHS = [20, 40, 60, 80, 100, 120, 160, 200, None]


@pytest.fixture(params=SAMPLES)
def history(request: pytest.FixtureRequest) -> RunHistory:
    return SAMPLES[request.param]()


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_no_name_is_cut(history: RunHistory, width: int | None) -> None:
    """Each dotted part of a name stands on one line, unbroken."""
    text = terminal.render(history, View(width=width, table="parameters", top=1000))
    whole = "\n".join(squeezed(line) for line in text.splitlines())
    for one in qualified(history).parameters:
        parts = [squeezed(part) for part in re.findall(r"[^.]*\.+|[^.]+$", plain(one.name))]
        assert all(part in whole for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, None])
def test_no_figure_is_cut(history: RunHistory, width: int | None) -> None:
    text = terminal.render(history, View(width=width))
    words = set(re.findall(r"[^\s!]+", text))
    last = [step for step in history.steps if step.loss is not None][-1:]
    if last and last[0] is history.steps[-1] and len(history.steps) > 1:
        assert number(last[0].loss) in words


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "hostile"])
def test_lines_fit_the_terminal(name: str, width: int) -> None:
    """Only a name that nothing can break may be wider."""
    history = SAMPLES[name]()
    for table in (None, "steps", "parameters", "calls", "findings", "events"):
        text = terminal.render(history, View(width=width, table=table))
        for line in text.splitlines():
            assert cell_len(line) <= width, line


def test_color_says_nothing_of_its_own(history: RunHistory) -> None:
    colored = terminal.render(history, View(color=True, width=100))
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == terminal.render(history, View(width=100))
    assert "\x1b[" in colored


@pytest.mark.slow
@pytest.mark.parametrize("table", [None, "steps", "parameters", "calls", "findings", "events"])
def test_nothing_unprintable_leaves(history: RunHistory, table: str | None) -> None:
    for reporter in (terminal, markdown):
        text = reporter.render(history, View(table=table))
        assert text.replace("\n", "").replace("\u00a0", "").isprintable()
    assert csv.render(history, View(table=table)).replace("\r\n", "").isprintable()


@pytest.mark.slow
def test_no_line_ends_in_blanks(history: RunHistory) -> None:
    for width in WIDTHS:
        lines = terminal.render(history, View(width=width)).splitlines()
        assert all(line == line.rstrip() for line in lines)


def test_hidden_columns_are_named(history: RunHistory) -> None:
    """Each column of the layers that a narrow page lacks is reported to be hidden."""
    if not history.parameters:
        return
    wide, narrow = (
        terminal.render(history, View(width=width, table="parameters", top=1))
        for width in (None, 60)
    )
    shown = [set(text[text.index("\nname") :].splitlines()[1].split()) for text in (wide, narrow)]
    said = re.search(r"hidden at this width: (.*?) \(", " ".join(narrow.split()))
    assert shown[0] - shown[1] == set(said[1].split(", ") if said else [])


def test_json_is_strict_and_holds_every_step(history: RunHistory) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    data = json.loads(run_json.render(history, View()), parse_constant=refuse)
    assert data["schema"] == "gradscope.run/2"
    assert data["status"] in ("ok", "findings", "failed")
    assert {len(column) for column in data["step_metrics"].values()} == {len(history.steps)}
    assert len(data["parameters"]) == len(history.parameters)
    assert len(data["findings"]) == len(history.findings)
    assert [one["name"] for one in data["parameters"]] == [one.name for one in history.parameters]


def test_csv_has_a_row_for_each_step(history: RunHistory) -> None:
    rows = list(reader(csv.render(history, View()).splitlines()))
    assert len(rows) == len(history.steps) + 1
    for row, step in zip(rows[1:], history.steps, strict=True):
        found = dict(zip(rows[0], row, strict=True))
        assert int(found["step"]) == step.step
        assert (float(found["loss"]) if found["loss"] else None) == step.loss


def test_csv_of_layers_has_a_row_for_each_step_looked_at(history: RunHistory) -> None:
    rows = list(reader(csv.render(history, View(table="parameters")).splitlines()))
    steps = [{*one.steps, *(one.norms.steps if one.norms else ())} for one in history.parameters]
    assert len(rows) == 1 + sum(map(len, steps))
