"""One folder for the runs of all workers of pytest, so that none runs a script a second time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "training-runs"
    folder.mkdir(exist_ok=True)
    return folder
