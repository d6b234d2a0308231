"""Models that write where they should not: into their input, or the working folder."""

from __future__ import annotations

import runpy

import pytest
import torch
from PIL import Image

from hostile.commands import gradscope

NETS = """
import os
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ReLU(inplace=True)
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        self.write(x)
        return self.linear(x)
    def write(self, x): pass

class Whole(Net):
    def write(self, x): x.add_(1)
class Element(Net):
    def write(self, x): x[:, 0] = 0
class View(Net):
    def write(self, x): x.view(-1)[0] = self.linear.weight.sum()
class Parts(Net):
    def write(self, x):
        for part in x.unbind(0): part.mul_(2)
        one, other = x.chunk(2, 1)
        one.add_(other)
class ByALayer(Net):
    def write(self, x):
        for part in x.unbind(0): self.inner(part)
        self.inner(x)
class Sees(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(200, 3))
        os.chdir("elsewhere")
class Moves(Net):
    def __init__(self):
        super().__init__()
        os.chdir("elsewhere")
"""
MODELS = ["Whole", "Element", "View", "Parts", "ByALayer"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "net.py").write_text(NETS)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "why", "graph", "check"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_writes_into_its_input(model, command, folder):
    found = gradscope([command, f"./net.py:{model}", "input.shape=[3, 4]"])
    assert found.code in (0, 1), found.err


@pytest.mark.parametrize("command", ["inspect", "check", "graph", "why"])
def test_a_model_that_changes_the_folder(command, folder):
    words = [command, "./net.py:Moves", "input.shape=[3, 4]", "-o", "made.json"]
    found = gradscope(words)
    assert found.code in (0, 1), found.err
    assert [path.name for path in folder.glob("*.json")] == ["made.json"]
    assert list((folder / "elsewhere").iterdir()) == []


def test_pictures_of_a_model_that_changes_the_folder(folder):
    Image.new("RGB", (12, 12), "red").save("a.png")
    words = ["saliency", "a.png", "-m", "./net.py:Sees", "--method", "gradient"]
    found = gradscope(words)
    assert found.code == 0, found.err
    assert len(list(folder.glob("a-gradient*.png"))) == 1
    assert list((folder / "elsewhere").iterdir()) == []


PARTS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
    def forward(self, x):
        for part in x.unbind(1): part.sub_(0.5)
        return self.head(self.conv(x).mean((2, 3)))
"""


@pytest.mark.parametrize(("method", "code"), [("occlusion", 0), ("grad-cam", 0), ("gradient", 3)])
def test_saliency_of_a_model_that_writes_into_parts_of_its_input(method, code, folder):
    """Autograd forbids it where the input wants a gradient, with or without gradscope."""
    (folder / "parts.py").write_text(PARTS)
    Image.new("RGB", (12, 12), "red").save("a.png")
    words = ["saliency", "a.png", "-m", "./parts.py:Net", "--method", method]
    found = gradscope([*words, *(["--layer", "conv"] if method == "grad-cam" else [])])
    assert (found.code, found.faults()) == (code, []), found.err
    net = runpy.run_path("parts.py")["Net"]()
    net(torch.rand(1, 3, 12, 12))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        net(torch.rand(1, 3, 12, 12).requires_grad_().clone())
    if code:
        assert "is a view and is being modified inplace" in found.err
        assert "parts.py:9" in found.err
