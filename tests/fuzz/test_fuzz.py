"""A few seconds of the net, the same at each run, and a checker that must complain."""

from __future__ import annotations

import pytest
from hostile import commands
from hypothesis import HealthCheck, given, settings

from fuzz.attempting import faults
from fuzz.inputs import Attempt, attempts
from gradscope import cli


@pytest.fixture(scope="module")
def saved() -> str:
    return commands.gradscope(["inspect", "demo", "-f", "json"]).out


@pytest.mark.slow
def test_the_contract_holds(saved: str) -> None:
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(attempts(saved))
    def holds(attempt: Attempt) -> None:
        assert faults(attempt) == []

    holds()


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cli, "get_command", fails)
    assert "exit code 4" in faults(Attempt("option", ("inspect", "demo")))
