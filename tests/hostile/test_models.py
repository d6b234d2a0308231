"""Models that misbehave: whatever they do is their doing, exit 3 and the line, or does no harm."""

from __future__ import annotations

import pytest

from gradscope import demo
from hostile.commands import gradscope

HEAD = """
import sys
import torch
from torch import nn
from gradscope import errors

class Broken(Exception):
    def __str__(self):
        {text}

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x)
"""
FORWARD = "class Net(Base):\n    def forward(self, x):\n        {}\n"
CONSTRUCTION = "class Net(Base):\n    def __init__(self):\n        super().__init__()\n        {}\n"
IMPORT = "class Net(Base): pass\n{}\n"
BACKWARD = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x
    @staticmethod
    def backward(context, gradient):
        {}
class Net(Base):
    def forward(self, x):
        return Double.apply(self.linear(x))
"""
TRAIN = "class Net(Base):\n    def train(self, mode=True):\n        {}\n"
MOVE = "class Net(Base):\n    def to(self, *args, **kwargs):\n        {}\n"
PLACES = {
    "import": IMPORT,
    "construction": CONSTRUCTION,
    "train": TRAIN,
    "to": MOVE,
    "forward": FORWARD,
    "backward": BACKWARD,
}
MESSAGES = {
    "raises": "raise ValueError('in __str__')",
    "exits": "sys.exit(7)",
    "interrupts": "raise KeyboardInterrupt",
    "is no text": "return 5",
    "is huge": "return 'x' * 10_000_000",
    "has many lines": "return 'x\\n' * 100_000",
}
ERRORS = {
    "SystemExit": "SystemExit(7)",
    "SystemExit without a code": "SystemExit",
    "BaseException": "BaseException('boo')",
    "GeneratorExit": "GeneratorExit",
    "MemoryError": "MemoryError",
    "RecursionError": "RecursionError('boo')",
    "StopIteration": "StopIteration(3)",
    "OSError": "OSError(28, 'No space left on device')",
    "a group": "ExceptionGroup('boo', [ValueError('one')])",
    "gradscope's ModelError": "errors.ModelError('boo')",
    "gradscope's ConfigError": "errors.ConfigError('boo')",
    "gradscope's Interrupted": "errors.Interrupted('boo')",
}


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Run ``inspect`` on a file that defines ``Net``."""
    monkeypatch.chdir(tmp_path)

    def of(source: str, *words: str):
        (tmp_path / "net.py").write_text(source)
        found = gradscope(["inspect", "./net.py:Net", "input.shape=[2, 4]", *words])
        assert found.faults() == []
        return found

    return of


@pytest.mark.slow
@pytest.mark.parametrize("place", ["import", "construction", "forward", "backward"])
@pytest.mark.parametrize("text", MESSAGES.values(), ids=MESSAGES)
def test_an_exception_whose_message(text, place, ends):
    found = ends(HEAD.format(text=text) + PLACES[place].format("raise Broken()"))
    assert found.code == 3
    assert "Broken" in found.err
    assert len(found.err) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_an_exception_of_an_unusual_kind(error, place, ends):
    found = ends(HEAD.format(text="return ''") + PLACES[place].format(f"raise {error}"))
    # A file that ends the process, or that cannot be imported, is not right itself.
    assert found.code == 3 or (place == "import" and found.code == 2)
    assert "net.py" in found.err


LIES = {
    "its class": "@property\n    def __class__(self): raise ValueError('boo')",
    "no hash": "__hash__ = None",
    "a hash that raises": "def __hash__(self): raise ValueError('boo')",
    "any attribute": "def __getattr__(self, name): raise ValueError('boo')",
    "train without a mode": "def train(self): pass",
    "parameters that raise": "def parameters(self, recurse=True): raise ValueError('boo')",
    "parameters that are none": "def parameters(self, recurse=True): return None",
    "parameters of another kind": "def parameters(self, recurse=True): return [1, 'x']",
    "parameters without end": (
        "def parameters(self, recurse=True):\n        while True: yield self.linear.weight"
    ),
    "named parameters that raise": "def named_parameters(self, *a, **k): raise ValueError('boo')",
    "names that are no text": "def named_parameters(self, *a, **k): yield 3, self.linear.weight",
    "modules that raise": "def modules(self): raise ValueError('boo')",
    "named modules that raise": "def named_modules(self, *a, **k): raise ValueError('boo')",
    "named modules without end": (
        "def named_modules(self, *a, **k):\n        while True: yield 'x', self"
    ),
    "modules that are none": "def named_modules(self, *a, **k): yield 'a', 5",
    "children that raise": "def children(self): raise ValueError('boo')",
    "buffers that raise": "def buffers(self, recurse=True): raise ValueError('boo')",
    "named buffers that raise": "def named_buffers(self, *a, **k): raise ValueError('boo')",
    "no constructor of torch's": "def __init__(self): pass",
    "a mode that cannot be set": (
        "def __setattr__(self, name, value):\n"
        "        if name == 'training': raise ValueError('boo')\n"
        "        super().__setattr__(name, value)"
    ),
}
HELD = {
    "a module by a number": "self._modules[5] = nn.Linear(4, 4)",
    "a parameter by None": "self._parameters[None] = nn.Parameter(torch.ones(1))",
    "a text as a module": "self._modules['x'] = 'text'",
    "a number as a parameter": "self._parameters['x'] = 5",
    "a number as a buffer": "self._buffers['x'] = 5",
    "no modules": "self._modules = None",
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_class_that_lies_about(lie, ends):
    found = ends(HEAD.format(text="return ''") + f"class Net(Base):\n    {lie}\n")
    assert found.code == 3


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_a_module_that_holds(held, ends):
    assert ends(HEAD.format(text="return ''") + CONSTRUCTION.format(held)).code == 3


def test_modules_nested_deeper_than_python_calls(ends):
    deeper = "for _ in range(3000): self.linear = nn.Sequential(self.linear)"
    assert ends(HEAD.format(text="return ''") + CONSTRUCTION.format(deeper)).code == 3


LYING = """
class Lie:
    def __init__(self, x, kind):
        self.x, self.kind = x, kind
    @property
    def __class__(self):
        if self.kind is None:
            raise ValueError('boo')
        return self.kind
class Layer(nn.Module):
    def forward(self, x, *others):
        return Lie(x, torch.Tensor), Lie(x, None), Lie(x, dict)
"""
OUTPUTS = {
    "a tensor": ("Lie(x, torch.Tensor)", 3),
    "nobody's": ("Lie(x, None)", 3),
    "a mapping": ("Lie(x, dict)", 3),
    "a tuple": ("Lie(x, tuple)", 3),
    "a module": ("Lie(x, nn.Module)", 3),
    "a tensor in a tuple": ("self.linear(x), Lie(x, torch.Tensor)", 0),
    "nobody's in a mapping": ("{'a': self.linear(x), 'b': Lie(x, None)}", 0),
    "a mapping in a list": ("[self.linear(x), Lie(x, dict)]", 0),
    "a loss": ("{'logits': self.linear(x), 'loss': Lie(x, torch.Tensor)}", 0),
    "of layers": ("Layer()(self.linear(x), Lie(x, list))[0].x", 0),
}


@pytest.mark.parametrize(("output", "code"), OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("command", ["inspect", "check", "why", "graph"])
def test_an_output_that_says_that_it_is(output, code, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = HEAD.format(text="return ''") + LYING + FORWARD.format(f"return {output}")
    (tmp_path / "net.py").write_text(source)
    words = [command, "./net.py:Net", "input.shape=[2, 4]", "--fail-on", "never"]
    found = gradscope(words[:-2] if command == "graph" else words)
    assert (found.code, found.faults()) == (code, [])


def test_a_transform_of_ones_own_that_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "class Transform:\n    def __call__(self, picture):\n        return picture.nothing\n"
    (tmp_path / "own.py").write_text(source)
    words = ["inspect", "demo", f"input.image={demo.DIGITS[0][0]}"]
    found = gradscope([*words, "input.transform={_target_: ./own.py:Transform}"])
    assert (found.code, found.faults()) == (3, [])
    assert "the transform failed" in found.err
    assert "own.py:3" in found.err
