"""The two ways to compute statistics on the CPU: the compiled library, and PyTorch's operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.capture import one_pass

COMPILE = Path(__file__).parents[2] / ".build" / "compile.py"


def compiled(folder: Path, **variables: str) -> one_pass.Library:
    """The library of today's source."""
    file = folder / "one_pass.so"
    words = [sys.executable, str(COMPILE), str(file)]
    if subprocess.run(words, env={**os.environ, **variables}, check=False).returncode:
        pytest.skip("no C compiler")
    return one_pass.Library(file)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> one_pass.Library:
    """The library as an installation compiles it."""
    return compiled(tmp_path_factory.mktemp("one_pass"))


@pytest.fixture(scope="session")
def common_library(tmp_path_factory: pytest.TempPathFactory) -> one_pass.Library:
    """The library as a processor without AVX2 uses it."""
    return compiled(tmp_path_factory.mktemp("common"), CC="cc -DCOMMON_ONLY")


@pytest.fixture(params=["compiled", "PyTorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in turn, whichever this installation uses."""
    found = "no library"
    if request.param == "compiled":
        found = request.getfixturevalue("library")
    monkeypatch.setattr(one_pass, "_library", found)
    return request.param
