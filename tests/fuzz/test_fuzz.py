"""A few inputs of each kind, the same at each run; and a checker that must complain."""

from __future__ import annotations

import pytest

from fuzz.attempts import Attempt, faults
from fuzz.strategies import STRATEGIES
from fuzz.trying import each
from gradscope import cli


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRATEGIES)
def test_the_contract_holds(kind: str) -> None:
    broken: list[tuple[list[str], Attempt]] = []

    def make(attempt: Attempt) -> None:
        found = faults(attempt)
        if found:
            broken.append((found, attempt))

    each(kind, make, count=4, seed=0)
    assert broken == []


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "completion", None)
    assert "exit code 4" in faults(Attempt("option", ("inspect", "demo")))


def test_a_file_that_is_left_is_found() -> None:
    source = "from pathlib import Path\nPath('x.tmp').touch()\nPath('made.json').write_text('{')\n"
    source += "class Net: ...\n"  # without one the file would not run
    found = faults(Attempt("model", ("layers", "./net.py:Net"), {"net.py": source}))
    assert found == ["half of `made.json`", "left `x.tmp`"]
