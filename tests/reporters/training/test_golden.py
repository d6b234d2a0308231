"""A run's whole page as text, at every width that matters.

After a wanted change: ``GRADSCOPE_GOLDEN=write pytest tests/reporters/training``, then read the
difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reporters.run_samples import SAMPLES

from gradscope import plugins
from gradscope.reporters.report import View

ROOM = "gradscope.reporters.training"
GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"60": 60, "80": 80, "120": 120, "200": 200, "pipe": None}


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    data = text.encode()
    if os.environ.get("GRADSCOPE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert path.read_bytes() == data, f"{name} has changed; see the docstring of this file"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SAMPLES)
def test_terminal(name: str, width: str) -> None:
    text = plugins.load(ROOM, "terminal").render(SAMPLES[name](), View(width=WIDTHS[width]))
    if (name, width) == ("many", "pipe"):  # all of its 499 parameters: the ends will do
        lines = text.splitlines(keepends=True)
        text = "".join([*lines[:40], "...\n", *lines[-10:]])
    check(f"{name}.{width}.txt", text)


@pytest.mark.parametrize("name", ["small", "one-step"])
@pytest.mark.parametrize("table", ["steps", "calls", "events", "findings"])
def test_tables(name: str, table: str) -> None:
    view = View(width=100, table=table)
    check(f"{name}.{table}.txt", plugins.load(ROOM, "terminal").render(SAMPLES[name](), view))


def test_folded() -> None:
    view = View(width=100, table="parameters", fold=True)
    check("many.fold.txt", plugins.load(ROOM, "terminal").render(SAMPLES["many"](), view))


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
@pytest.mark.parametrize("name", ["gan", "empty", "one-step", "hostile"])
def test_other_formats(name: str, format: str) -> None:
    reporter = plugins.load(ROOM, format)
    check(f"{name}{reporter.suffix}", reporter.render(SAMPLES[name](), View()))


@pytest.mark.parametrize("table", ["parameters", "calls", "findings", "events"])
def test_other_tables_as_csv(table: str) -> None:
    text = plugins.load(ROOM, "csv").render(SAMPLES["one-step"](), View(table=table))
    check(f"one-step.{table}.csv", text)


def test_a_changed_page_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADSCOPE_GOLDEN", raising=False)
    text = plugins.load(ROOM, "terminal").render(SAMPLES["small"](), View(width=80))
    with pytest.raises(AssertionError, match="has changed"):
        check("small.80.txt", text.replace("2.344", "2.345", 1))
