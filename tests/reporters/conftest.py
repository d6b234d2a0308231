"""The sample reports as fixtures, and an environment that says nothing of width and colour."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from reporters.report_samples import SAMPLES

from gradscope.records.report import Report


@pytest.fixture(params=SAMPLES)
def report(request: pytest.FixtureRequest) -> Report:
    """Each sample in turn."""
    return SAMPLES[request.param]()


@pytest.fixture
def sample() -> Callable[[str], Report]:
    """A sample by its name."""
    return lambda name: SAMPLES[name]()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour and no width from the machine that runs the tests."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def samples() -> dict[str, Callable[[], Report]]:
    """All samples by name."""
    return SAMPLES
