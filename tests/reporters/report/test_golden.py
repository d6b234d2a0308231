"""Whole tables as text, at every width that matters.

After a wanted change: ``GRADSCOPE_GOLDEN=write pytest tests/reporters/report``, then read
the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope import plugins
from gradscope.records.report import Report
from gradscope.reporters.report import View

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"60": 60, "80": 80, "120": 120, "200": 200, "pipe": None}
SAMPLES = ("small", "resnet", "outputs", "failed", "steps", "chain", "deep", "broken")


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    data = text.encode()
    if os.environ.get("GRADSCOPE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert path.read_bytes() == data, f"{name} has changed; see the docstring of this file"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SAMPLES)
def test_terminal(name: str, width: str, sample: Callable[[str], Report]) -> None:
    render = plugins.load("gradscope.reporters.report", "terminal").render
    check(f"{name}.{width}.txt", render(sample(name), View(width=WIDTHS[width])))


@pytest.mark.parametrize("format", ["markdown", "csv", "json"])
@pytest.mark.parametrize("name", ["outputs", "failed", "chain", "broken"])
def test_other_formats(name: str, format: str, sample: Callable[[str], Report]) -> None:
    reporter = plugins.load("gradscope.reporters.report", format)
    check(f"{name}{reporter.suffix}", reporter.render(sample(name), View()))


def test_every_sample_has_its_golden_text(samples: dict[str, object]) -> None:
    assert set(samples) == set(SAMPLES)


def test_a_changed_table_is_noticed(
    sample: Callable[[str], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADSCOPE_GOLDEN", raising=False)
    text = plugins.load("gradscope.reporters.report", "terminal").render(
        sample("small"), View(width=80)
    )
    with pytest.raises(AssertionError, match="has changed"):
        check("small.80.txt", text.replace("4.867", "4.868", 1))
