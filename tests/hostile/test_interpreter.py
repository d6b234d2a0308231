"""Code that changes Python itself: it harms nobody who comes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradscope as package
from hostile.commands import gradscope

NET = """
import builtins, json, os, sys, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        {construction}
    def forward(self, x):
        {forward}
        return self.linear(x)
"""
#: What a model does, and how the command ends.
CHANGES = {
    "no len": ("builtins.len = lambda x: 3", 3),
    "no print": ("builtins.print = None", 0),
    "no exit": ("sys.exit = None", 0),
    "no finders": ("sys.meta_path.clear()", 3),
    "no dumps": ("json.dumps = None", 0),
    "no json": ("sys.modules['json'] = None", 3),
    "no paths": ("sys.path.clear()", 0),
}


@pytest.mark.parametrize(("line", "code"), CHANGES.values(), ids=CHANGES)
def test_what_a_forward_changes(line, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET.format(construction="pass", forward=line))
    found = gradscope(["inspect", "./net.py:Net", "input.shape=[2, 4]", "-f", "json"])
    assert found.faults() == []
    # Without finders nothing fails where another command has imported everything before.
    assert found.code in (0, code), found.err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="descriptors of POSIX")
def test_what_a_model_closes(tmp_path):
    """In an interpreter of its own, which writes what is left as it ends."""
    line = "sys.__stdout__.close(); sys.stderr.close()"
    (tmp_path / "net.py").write_text(NET.format(construction=line, forward="pass"))
    home = str(Path(package.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "gradscope", "inspect", "./net.py:Net", "input.shape=[2, 4]"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": home},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "linear" in done.stdout
