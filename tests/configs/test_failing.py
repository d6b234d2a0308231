"""Configs whose model raises: exit 3, the error's kind, and what was recorded until then."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest

pytestmark = pytest.mark.slow

FAILING = Path(__file__).parent / "failing"

#: The layer that was executing, where there was one.
LAYERS = {"shape-mismatch": "second"}


@pytest.mark.parametrize("kind", sorted(path.stem for path in FAILING.glob("*.yaml")))
def test_a_failure_is_named_and_reported(kind):
    config = str(FAILING / f"{kind}.yaml")
    done = processes.gradscope(["inspect", config, "-f", "json"], cwd=FAILING)
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "failed"
    assert report["error"]["kind"] == kind
    assert report["error"]["advice"]
    assert report["calls"], "what was recorded until then is missing"
    assert report["error"]["name"] == LAYERS.get(kind, report["error"]["name"])
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
