"""Code that changes Python itself: it harms nobody who comes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="descriptors of POSIX")
@pytest.mark.parametrize("words", [(), ("-o", "made.json")], ids=["", "-o"])
def test_a_model_that_closes_every_descriptor(words, tmp_path):
    """Nothing is left to say it on: the exit code tells that it was the model."""
    source = NET.format(construction="pass", forward="os.closerange(0, 1000)")
    (tmp_path / "net.py").write_text(source)
    home = str(Path(package.__file__).parents[1])
    command = [sys.executable, "-m", "gradscope", "inspect", "./net.py:Net", "input.shape=[2, 4]"]
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": home},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert [path.name for path in tmp_path.glob("*.json")] == []


MODES = """
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
class Raises(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise ValueError("left behind")
class Passes(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise ValueError("left behind")
class Net(nn.Module):
    def __init__(self, place, mode):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.place, self.mode = place, globals()[mode]()
        if place == "construction":
            self.mode.__enter__()
    def forward(self, x):
        x = self.linear(x)
        if self.place == "forward":
            self.mode.__enter__()
        return x
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "why", "graph", "check"])
@pytest.mark.parametrize("place", ["construction", "forward"])
@pytest.mark.parametrize("mode", ["Raises", "Passes", "Dispatched"])
def test_a_mode_that_nobody_leaves(command, place, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODES)
    settings = (f"model.place={place}", f"model.mode={mode}", "input.shape=[2, 4]")
    found = gradscope([command, "./net.py:Net", *settings])
    assert found.faults() == []
    if mode == "Passes":
        assert found.code in (0, 1)
    else:
        assert (found.code, "left behind" in found.out + found.err) == (3, True)
    assert torch.ones(2).sum() == 2
    assert torch.overrides._get_current_function_mode_stack() == []
