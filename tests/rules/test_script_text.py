"""What the script's text and its own autograd functions show, and what looks like it."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import ClassVar

import pytest
import torch

from gradscope.training.loop import script_text
from gradscope.training.loop.construction import Made, _assigned
from gradscope.training.loop.custom_functions import CustomFunctions, _is_pure

SIZES = "n, t, c = x.shape\n"
SWAPPED = {
    "at once": f"{SIZES}y = x.view(n, c, t)",
    "in a block": f"{SIZES}with no_grad():\n    y = torch.reshape(x, (n, c, t))",
    "after its sizes": f"{SIZES}x = x.reshape(n, c, t)",
}
KEPT = {
    "permuted in a block": f"{SIZES}if a:\n    x = x.permute(0, 2, 1)\n    x = x.view(n, c, t)",
    "another function's": f"{SIZES}def f(x):\n    return x.reshape(n, c, t)",
    "a lambda's": f"{SIZES}f = lambda x: x.reshape(n, c, t)",
    "each of a list": f"{SIZES}y = [x.reshape(n, c, t) for x in turned]",
    "turned in place": "n, c = x.shape\nx.t_()\ny = x.reshape(c, n)",
    "shifted rows": f"x = F.pad(scores, (1, 0))\n{SIZES}y = x.reshape(n, c, t)[:, 1:]",
}
APART = "rng.shuffle(x)\nrng.shuffle(y)\n"
TOGETHER = {
    "two of one seed": "RandomState(0).shuffle(x)\nRandomState(0).shuffle(y)\n",
    "a state in between": "np.random.shuffle(x)\nnp.random.set_state(s)\nnp.random.shuffle(y)\n",
    "made anew": "rng.shuffle(x)\nrng = np.random.default_rng(0)\nrng.shuffle(y)\n",
}


def _read(text, find, monkeypatch):
    monkeypatch.setattr(script_text, "main_text", lambda: ("a.py", ast.parse(dedent(text))))
    return list(find())


@pytest.mark.parametrize(("texts", "count"), [(SWAPPED, 1), (KEPT, 0)])
def test_views(texts, count, monkeypatch):
    for name, text in texts.items():
        assert len(_read(text, script_text.written_views, monkeypatch)) == count, name


def test_shuffles(monkeypatch):
    pairs = "for a, b in zip(x, y):\n    pass\n"
    assert _read(APART + pairs, script_text.shuffled_apart, monkeypatch)
    for name, text in TOGETHER.items():
        assert not _read(text + pairs, script_text.shuffled_apart, monkeypatch), name


class Centred(torch.autograd.Function):
    """Its backward makes zeros of ones."""

    @staticmethod
    def forward(ctx, x):
        return x - x.sum(1, keepdim=True) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.sum(1, keepdim=True) / 4


class Stopped(Centred):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return 0 * gradient


class Strict(Centred):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * [2.0][gradient.dtype == torch.float64]


def _counting():
    calls = {"n": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls["n"] += 1
            return x.sign()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Counted


class Noted(Centred):
    calls: ClassVar = {"n": 0}

    @staticmethod
    def forward(ctx, x):
        Noted.calls["n"] += 1
        return x.sign()


@pytest.mark.parametrize(("kind", "found"), [(Centred, 0), (Strict, 0), (Stopped, 1)])
def test_functions_without_a_gradient(kind, found):
    functions = CustomFunctions()
    functions.keep(kind, [torch.rand(3, 4).requires_grad_()])
    functions.check(1)
    assert len(functions.records()) == found


@pytest.mark.parametrize("kind", [_counting(), Noted])
def test_functions_that_count_their_calls_are_not_called(kind):
    assert not _is_pure(kind)
    assert _is_pure(Centred)


def test_layers_of_an_argument_are_made_elsewhere(tmp_path):
    file = tmp_path / "net.py"
    text = "def make(layers):\n    spare = nn.Linear(2, 2)\n    return nn.Sequential(*layers)\n"
    for text_of, line in ((text, 3), (text.replace("(layers)", "()"), 2)):
        file.write_text(text_of)
        other = file.rename(tmp_path / f"net{line}.py")
        assert _assigned(Made(str(other), 3, 0), "Linear").number_of_line == line
