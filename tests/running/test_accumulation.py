"""Micro-batches against the batch: gradients as PyTorch's own loop gives them, and the verdict."""

from __future__ import annotations

import guards
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope
from gradscope import plugins
from gradscope.errors import ConfigError
from gradscope.reporters.views import View

markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

pytestmark = pytest.mark.numbers

X = torch.arange(32.0).reshape(8, 4).sin()
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
IGNORED = torch.tensor([0, 1, -100, -100, 2, 1, 0, -100])


class Centred(nn.Module):
    """Mixes the samples of a batch, and is no batch norm."""

    def forward(self, x):
        return x - x.mean(0)


class Functional(nn.Module):
    """Dropout without its own module."""

    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


def net(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def inspected(model, x=X, y=Y, **options):
    with guards.unchanged(model):
        return gradscope.inspect(model, x, **{"target": y, "accumulate": 4, **options})


def by_hand(model, x, y, sizes, loss=F.cross_entropy):
    """The loop that everybody writes."""
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        (loss(model(x[rows]), y[rows]) / len(sizes)).backward()
        start += size
    found = {name: float(p.grad.norm()) for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize(("count", "sizes"), [(4, (2, 2, 2, 2)), (3, (3, 3, 2)), (8, (1,) * 8)])
def test_gradients_are_those_of_a_loop_by_hand(count, sizes):
    model = net()
    report = inspected(model, accumulate=count, verify=True)
    expected = by_hand(model, X, Y, sizes)
    assert report.run.verified.identical
    assert report.accumulation.sizes == sizes
    for parameter in report.parameters:
        assert parameter.gradient.norm == pytest.approx(expected[parameter.name], rel=1e-5)
    pairs = zip(X.split(2), Y.split(2), strict=True)
    losses = [F.cross_entropy(model(x), y).item() for x, y in pairs]
    if count == 4:
        assert report.loss == pytest.approx(sum(losses) / 4, rel=1e-6)
        assert [h.loss for h in report.history][-1] == report.loss
        assert [c.call for c in report.calls if c.name == "0"] == [0, 1, 2, 3]
        assert [h.backward for h in report.history] == [0, 1, 2, 3]


def test_they_equal_the_batch_where_nothing_mixes_samples():
    report = inspected(net(nn.LayerNorm(8)))
    found = report.accumulation
    assert (found.equal, found.causes, found.dtype) == (True, (), "float64")
    assert found.error < 1e-13
    assert "of 4 micro-batches of 2 add up to those of the batch" in terminal.render(report, View())
    whole = gradscope.inspect(net(nn.LayerNorm(8)), X, target=Y)
    assert report.totals.gradient_norm == pytest.approx(whole.totals.gradient_norm, rel=1e-5)


def test_random_targets_are_those_of_the_batch():
    assert inspected(net(), y=None).accumulation.equal
    assert inspected(net(), y="random", loss="mse").accumulation.equal


TOLD_APART = {
    "batch norm": ([nn.BatchNorm1d(8)], {}, {"batch-statistics": ("1",)}),
    "dropout": ([nn.Dropout(), nn.Dropout()], {}, {"random-numbers": ("1", "2")}),
    "dropout as a function": ([Functional(), Functional()], {}, {"random-numbers": ("1", "2")}),
    "both": (
        [nn.BatchNorm1d(8), nn.Dropout(), nn.Dropout()],
        {},
        {"batch-statistics": ("1",), "random-numbers": ("2", "3")},
    ),
    "unequal micro-batches": ([], {"accumulate": 3}, {"loss": ()}),
    "a sum": ([], {"loss": "sum"}, {"loss": ()}),
    "ignored targets": ([], {"loss": nn.CrossEntropyLoss(), "y": IGNORED}, {"loss": ()}),
    "class weights": (
        [],
        {"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0]))},
        {"loss": ()},
    ),
    "what mixes samples": ([Centred()], {}, {"unknown": ()}),
    "a norm and unequal parts": (
        [nn.BatchNorm1d(8)],
        {"accumulate": 3},
        {"batch-statistics": ("1",), "loss": ()},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("middle", "options", "causes"), TOLD_APART.values(), ids=TOLD_APART)
def test_what_tells_them_apart(middle, options, causes):
    report = inspected(net(*middle), **options)
    found = report.accumulation
    assert not found.equal
    assert {cause.kind: cause.names for cause in found.causes} == causes
    first = found.layers[0]
    assert (first.name, set(first.causes)) == ("0", set(causes))
    for text in (terminal.render(report, View(width=80)), markdown.render(report, View())):
        assert "do not add up" in " ".join(text.split())
        assert all(kind in text for kind in causes)


def test_layers_behind_a_dropout_only_differ_for_it():
    """The last layer sees what the dropout made; no layer sees a batch norm."""
    found = inspected(net(nn.Dropout(), nn.Dropout())).accumulation
    assert all(layer.causes == ("random-numbers",) for layer in found.layers)


def test_a_frozen_batch_norm_tells_nothing_apart():
    model = net(nn.BatchNorm1d(8))
    model[1].eval()
    assert inspected(model).accumulation.equal


def test_the_weights_of_a_mean_over_unequal_counts():
    (cause,) = inspected(net(), y=IGNORED, loss=nn.CrossEntropyLoss()).accumulation.causes
    # Of five targets that count, the pairs hold 2, 0, 2 and 1.
    assert cause.weights == pytest.approx([0.4, 0.0, 0.4, 0.2], abs=1e-9)
    assert "ignored targets" in cause.message
    (cause,) = inspected(net(), accumulate=3).accumulation.causes
    assert cause.weights == pytest.approx([3 / 8, 3 / 8, 2 / 8], abs=1e-9)
    assert "samples" in cause.message
    (cause,) = inspected(net(), loss="sum").accumulation.causes
    assert cause.weights == pytest.approx([1.0] * 4, abs=1e-9)


def test_the_error_of_a_layer():
    model = net(nn.BatchNorm1d(8)).double()
    found = inspected(model, X.double()).accumulation
    F.cross_entropy(model(X.double()), Y).backward()
    whole = torch.cat([p.grad.flatten() for p in model[0].parameters()])
    model.zero_grad()
    for x, y in zip(X.double().split(2), Y.split(2), strict=True):
        (F.cross_entropy(model(x), y) / 4).backward()
    parts = torch.cat([p.grad.flatten() for p in model[0].parameters()])
    expected = float((whole - parts).norm() / whole.norm())
    assert found.layers[0].error == pytest.approx(expected, rel=1e-9)


def test_the_gradient_of_an_input_is_the_whole_batchs():
    x = X.clone().requires_grad_()
    report = inspected(net(), x)
    F.cross_entropy(net()(x), Y).backward()
    last = report.history[-1].inputs[0]
    assert last.gradient.norm == pytest.approx(float(x.grad.norm()), rel=1e-5)


def test_steps_and_interventions_go_with_it():
    one = {"layers": "0", "at": "parameter_grad", "do": "scale", "value": 2}
    report = inspected(net(), steps=2, interventions=[one])
    assert len(report.history) == 8
    assert report.accumulation.equal  # doubled in both
    plain = gradscope.inspect(net(), X, target=Y, steps=1)
    assert report.interventions[0].factor == pytest.approx(2)
    assert report.interventions[0].before.norm > 0
    assert plain.accumulation is None


def test_a_model_without_float64_is_compared_in_its_own():
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return self.inner(x)

    found = inspected(Single()).accumulation
    assert (found.equal, found.dtype) == (True, "float32")


def test_more_micro_batches_than_samples():
    with pytest.raises(ConfigError, match="a batch of 8 cannot be cut into 9 micro-batches"):
        gradscope.inspect(net(), X, accumulate=9)
