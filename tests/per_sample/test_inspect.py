"""``inspect --per-sample``: the table, its figures, and what cannot be taken apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope
from gradscope import plugins
from gradscope.records.report import Report
from gradscope.reporters.views import View

markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

X = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(6, 8)
Y = torch.arange(6) % 3


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def inspected(model: nn.Module, inputs: torch.Tensor = X, **options: object) -> Report:
    return gradscope.inspect(model, inputs, per_sample=True, **options)  # type: ignore[arg-type]


def test_losses_norms_and_shares_are_those_of_samples_alone() -> None:
    model = classifier()
    report = inspected(model, target=Y, loss="cross_entropy")
    found = report.per_sample
    assert found is not None
    assert found.norm == pytest.approx(report.totals.gradient_norm, rel=1e-6)
    assert sum(one.share or 0 for one in found.samples) == pytest.approx(1, abs=1e-9)
    for one in found.samples:
        rows = slice(one.index, one.index + 1)
        loss = F.cross_entropy(model(X[rows]), Y[rows])
        own = torch.autograd.grad(loss / len(X), list(model.parameters()))
        assert one.loss == pytest.approx(loss.item(), rel=1e-9)
        assert one.norm == pytest.approx(sum(float(g.square().sum()) for g in own) ** 0.5, rel=1e-9)
        assert sum(share for _, share in one.layers) == pytest.approx(1, abs=1e-9)
    assert all(p.grad is None for p in model.parameters())


def test_the_sample_with_a_large_input_stands_first() -> None:
    x = X.clone()
    x[4] *= 300
    report = inspected(nn.Linear(8, 1).double(), x, target=torch.zeros(6, 1).double(), loss="mse")
    text = terminal.render(report, View())
    rows = text[text.index("samples ") :].splitlines()
    assert rows[3].split()[0] == "4"
    assert "| 4 |" in markdown.render(report, View())


def test_a_loss_that_the_model_computes() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3).double()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.layer(x)
            return {"loss": F.cross_entropy(scores, labels), "scores": scores}

    report = gradscope.inspect(Own(), {"x": X, "labels": Y}, per_sample=True)
    found = report.per_sample
    assert found is not None
    losses = [one.loss for one in found.samples]
    assert sum(loss or 0 for loss in losses) / 6 == pytest.approx(report.loss, rel=1e-9)


def test_batch_norm_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    report = inspected(model, target=Y, loss="cross_entropy")
    assert report.per_sample is not None
    assert report.per_sample.mixing == ("1",)
    assert not report.per_sample.noise
    assert "samples are not independent: 1 normalise over the batch" in terminal.render(
        report, View()
    )


def test_one_sample_is_said() -> None:
    report = inspected(classifier(), X[:1], target=Y[:1], loss="cross_entropy")
    assert report.per_sample is None
    assert any("the batch has one sample" in notice for notice in report.run.notices)


def test_no_rows_is_said() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).mean()

    report = inspected(Mean(), loss="mean")
    assert report.per_sample is None
    assert any(
        "no gradients of single samples: no output of the model has a row" in notice
        for notice in report.run.notices
    )
