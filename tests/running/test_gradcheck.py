"""Layers whose backward is right, wrong or random, inside a model; every wrong one is found."""

from __future__ import annotations

import guards
import pytest
import torch
from torch import nn
from torch.autograd import Function

import gradscope
from gradscope import plugins
from gradscope.errors import LayerError
from gradscope.records.full_samples import GradientCheck
from gradscope.reporters.views import View

markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

pytestmark = pytest.mark.numbers


class SwishFunction(Function):
    """x · sigmoid(kx), with factors by which its backward is off."""

    @staticmethod
    def forward(ctx, x, k, off_x, off_k, noise):
        ctx.save_for_backward(x, k)
        ctx.off = off_x, off_k, noise
        return x * torch.sigmoid(k * x)

    @staticmethod
    def backward(ctx, grad):
        x, k = ctx.saved_tensors
        off_x, off_k, noise = ctx.off
        s = torch.sigmoid(k * x)
        by_x = grad * (s + k * x * s * (1 - s)) * off_x
        by_k = (grad * x * x * s * (1 - s)).sum() * off_k
        return by_x + noise * torch.randn_like(x), by_k, None, None, None


class Swish(nn.Module):
    def __init__(self, off_x: float = 1.0, off_k: float = 1.0, noise: float = 0.0) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(1.0))
        self.off = off_x, off_k, noise

    def forward(self, x):
        return SwishFunction.apply(x, self.k, *self.off)


class Unseeded(nn.Module):
    """Draws from a generator that nobody else knows."""

    generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + torch.rand((), generator=self.generator)


def checked(layer: nn.Module, x: torch.Tensor | None = None) -> tuple[GradientCheck, ...]:
    """Return the report on a layer in the middle of a model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    x = torch.randn(3, 4) if x is None else x
    with guards.unchanged(model):
        report = gradscope.inspect(model, x, gradcheck=["1"])
    assert not [n for n in report.run.notices if "failed" in n]
    return report.gradient_checks


FUNCTIONS = {
    "right": (Swish(), {"input 0": "right", "k": "right"}),
    "off at the input": (Swish(1.01), {"input 0": "wrong", "k": "right"}),
    "off at the parameter": (Swish(off_k=1.01), {"input 0": "right", "k": "wrong"}),
    "of the other sign": (Swish(-1.0), {"input 0": "wrong", "k": "right"}),
    "a random backward": (Swish(noise=1e-3), {"input 0": "non-deterministic", "k": "right"}),
    "a random forward": (Unseeded(), {"": "non-deterministic"}),
    "a dropout": (nn.Dropout(0.5), {"input 0": "right"}),
    "a batch norm": (nn.BatchNorm1d(8), dict.fromkeys(["input 0", "weight", "bias"], "right")),
    "in place": (nn.ReLU(inplace=True), {"input 0": "right"}),
    "larger": (nn.Linear(8, 8), dict.fromkeys(["input 0", "weight", "bias"], "right")),
}


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "verdicts"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_verdict_on_each_input(layer, verdicts):
    assert {check.input: check.verdict for check in checked(layer)} == verdicts


@pytest.mark.slow
@pytest.mark.parametrize("off", [1.01, 0.99, 2.0, 0.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_both_ways_to_the_derivative(off, rows):
    """By hand: backward is off by that factor, and the differences are not."""
    check = checked(Swish(off), torch.randn(rows, 4))[0]
    assert check.verdict == "wrong"
    assert check.backward == pytest.approx(off * check.differences, rel=1e-6, abs=1e-9)


def test_a_cut_is_wrong_where_the_output_goes_with_the_input():
    class Cut(nn.Module):
        def forward(self, x):
            return x + 2 * x.detach()

    (check,) = checked(Cut())
    assert check.verdict == "wrong"
    assert check.backward == pytest.approx(check.differences / 3)


def test_a_kink_is_no_fault():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Unflatten(1, (1, 8)), nn.MaxPool1d(4))
    report = gradscope.inspect(model, torch.randn(6, 4), loss="sum", gradcheck=["3"])
    (pool,) = report.gradient_checks
    assert pool.verdict == "kink"  # zeros beside zeros
    assert "no unique derivative" in pool.note


class Several(nn.Module):
    """Runs twice, and is called by name; one input is shared, one is no number to differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.table = nn.RNNCell(3, 3), nn.Embedding(5, 3)
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, ids):
        x = self.table(ids)
        h = self.cell(x[:, 0])
        h = self.cell(x[:, 1], hx=h)
        y, _ = self.attention(x, x, x)
        return h + y.mean(1)


def test_calls_and_inputs_of_every_kind():
    torch.manual_seed(0)
    model, ids = Several(), torch.randint(5, (2, 2))
    layers = ["cell", "table", "attention"]
    with guards.unchanged(model):
        report = gradscope.inspect(model, ids, loss="sum", gradcheck=layers)
    found = report.gradient_checks
    assert {check.verdict for check in found} == {"right"}
    inputs = {(c.name, c.call, c.input) for c in found if c.input.startswith("input")}
    assert inputs == {
        ("cell", 0, "input 0"),
        ("cell", 1, "input 0"),
        ("cell", 1, "input hx"),
        ("attention", 0, "input 0"),
    }


def test_what_cannot_be_checked_says_why():
    class Single(nn.Module):
        def forward(self, x):
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return 2 * x

    class Locked(nn.Module):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

        def forward(self, x):
            return 2 * x

    notes = {
        "fails in float64: float32 only": Single(),
        "cannot be copied: no copies": Locked(),
    }
    for note, layer in notes.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
        (check,) = gradscope.inspect(model, torch.randn(3, 4), gradcheck=["1"]).gradient_checks
        assert (check.verdict, check.note) == ("unchecked", note)


def test_the_table():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Swish(1.01), nn.Linear(8, 3))
    report = gradscope.inspect(model, torch.randn(3, 4), gradcheck=["1", "2"])
    text = terminal.render(report, View(width=80))
    assert "gradient checks  1 wrong, 4 right" in text
    assert "### Gradient checks" in markdown.render(report, View())
    assert not gradscope.inspect(model, torch.randn(3, 4)).gradient_checks


def test_a_pattern_that_matches_nothing_is_told_before_anything_runs():
    with pytest.raises(LayerError, match="`none` matches no layer"):
        gradscope.inspect(nn.Linear(4, 2), torch.randn(3, 4), gradcheck=["none"])
