"""The two ways to compute statistics on the CPU: the compiled library, and PyTorch's operations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.capture import one_pass

COMPILE = Path(__file__).parents[2] / ".build" / "compile.py"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> one_pass.Library:
    """The library of today's source."""
    file = tmp_path_factory.mktemp("one_pass") / "one_pass.so"
    if subprocess.run([sys.executable, str(COMPILE), str(file)], check=False).returncode:
        pytest.skip("no C compiler")
    return one_pass.Library(file)


@pytest.fixture(params=["compiled", "PyTorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in turn, whichever this installation uses."""
    found = "no library"
    if request.param == "compiled":
        found = request.getfixturevalue("library")
    monkeypatch.setattr(one_pass, "_library", found)
    return request.param
