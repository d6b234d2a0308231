"""Reports and training runs as text, at every width; ``golden.py`` says how to change them."""

from __future__ import annotations

from typing import Any

import pytest
from reporters import report_samples, run_samples
from reporters.golden import HERE, WIDTHS, check

from gradscope import plugins
from gradscope.reporters.views import View

SAMPLES: dict[str, Any] = {
    **{f"report/{name}": make for name, make in report_samples.SAMPLES.items()},
    **{f"training/{name}": make for name, make in run_samples.SAMPLES.items()},
}
TABLES = [
    *(
        ("terminal", name, t)
        for name in ("small", "one-step")
        for t in ("steps", "calls", "events", "findings")
    ),
    *(("csv", "one-step", table) for table in ("parameters", "calls", "findings", "events")),
]
OTHERS = [
    *(f"report/{name}" for name in ("outputs", "failed", "chain", "broken")),
    *(f"training/{name}" for name in ("gan", "empty", "one-step", "hostile", "causes", "read")),
]


def rendered(name: str, format: str, **view: Any) -> tuple[str, str]:
    """The text of a sample, and the suffix of its format."""
    reporter = plugins.load(f"gradscope.reporters.{name.partition('/')[0]}", format)
    return reporter.render(SAMPLES[name](), View(**view)), reporter.suffix


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SAMPLES)
def test_terminal(name: str, width: str) -> None:
    text, _ = rendered(name, "terminal", width=WIDTHS[width])
    if (name, width) == ("training/many", "pipe"):  # all of its 499 parameters: the ends will do
        lines = text.splitlines(keepends=True)
        text = "".join([*lines[:40], "...\n", *lines[-10:]])
    check(f"{name}.{width}.txt", text)


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_formats(name: str, format: str) -> None:
    text, suffix = rendered(name, format)
    check(f"{name}{suffix}", text)


@pytest.mark.parametrize(("format", "name", "table"), TABLES)
def test_tables_of_a_run(format: str, name: str, table: str) -> None:
    width = {"width": 100} if format == "terminal" else {}
    text, suffix = rendered(f"training/{name}", format, table=table, **width)
    check(f"training/{name}.{table}{suffix}", text)


def test_folded() -> None:
    text, _ = rendered("training/many", "terminal", width=100, table="parameters", fold=True)
    check("training/many.fold.txt", text)


def test_every_sample_has_its_golden_texts_and_no_other_has() -> None:
    found = {
        f"{path.parent.parent.name}/{path.name.partition('.')[0]}"
        for path in HERE.glob("*/golden/*")
        if not path.name.startswith("check-")  # findings have their own test
    }
    assert found == set(SAMPLES)


@pytest.mark.parametrize(
    ("name", "number", "other"),
    [("report/small", "4.867", "4.868"), ("training/small", "2.344", "2.345")],
)
def test_a_change_is_noticed(name: str, number: str, other: str, monkeypatch) -> None:
    monkeypatch.delenv("GRADSCOPE_GOLDEN", raising=False)
    text, _ = rendered(name, "terminal", width=80)
    with pytest.raises(AssertionError, match="has changed"):
        check(f"{name}.80.txt", text.replace(number, other, 1))
