"""Each sample's part of the gradient, against a backward of that sample alone, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.per_sample.contributions import (
    NotSeparable,
    SampleGradients,
    TooSlow,
    sample_gradients,
)
from per_sample.models import CASES, QUICK, Case

MODELS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


def parts_of(case: Case) -> SampleGradients:
    return sample_gradients(case.model, lambda: case.forward(slice(None)), case.count)


def alone(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Norms, scalar products with the batch's gradient, and its norm: one backward a sample."""
    parameters = [p for p in case.model.parameters() if p.requires_grad]

    def gradient(samples: slice, share: float) -> torch.Tensor:
        _, loss = case.forward(samples)
        found = torch.autograd.grad(loss * share, parameters, allow_unused=True)
        return torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten()
             for p, g in zip(parameters, found, strict=True)]
        )  # fmt: skip

    full = gradient(slice(None), 1.0)
    own = [gradient(slice(n, n + 1), 1 / case.count) for n in range(case.count)]
    return (
        torch.stack([g.norm() for g in own]),
        torch.stack([g @ full for g in own]),
        full.norm(),
    )


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_those_of_samples_alone(name: str) -> None:
    torch.manual_seed(3)
    case = CASES[name]()
    found = parts_of(case)
    norms, products, norm = alone(case)
    assert torch.allclose(found.norms, norms, rtol=1e-6, atol=1e-12 * float(norm))
    assert torch.allclose(found.products.sum(1), products, rtol=1e-6, atol=1e-9 * float(norm) ** 2)
    assert found.norm == pytest.approx(float(norm), rel=1e-6)
    assert float(found.shares.sum()) == pytest.approx(1, abs=1e-6)
    assert not found.mixing


@pytest.mark.parametrize("name", ["lstm", "u-net", "mobilenet_v2"])
def test_layers_and_backwards_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    case = CASES[name]()
    by_hooks = parts_of(case)
    assert all(by_hooks.by_hooks)
    monkeypatch.setattr("gradscope.per_sample.layer_gradients.known", lambda module: False)
    by_backwards = parts_of(case)
    assert not any(by_backwards.by_hooks)
    assert torch.allclose(by_hooks.squares, by_backwards.squares, rtol=1e-6, atol=1e-18)
    assert torch.allclose(by_hooks.products, by_backwards.products, rtol=1e-6, atol=1e-15)


def test_positions_are_no_samples() -> None:
    """Time first, as many positions as samples: the layer's parts add up, but are positions'."""
    torch.manual_seed(5)
    layer, x = nn.Linear(4, 4).double(), torch.randn(5, 5, 4, dtype=torch.float64)

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(given.transpose(0, 1))).transpose(0, 1).mean(1)

    model = TimeFirst()
    case = Case(model, lambda samples: ((y := model(x[samples])), y.square().mean()))
    found = parts_of(case)
    assert not any(found.by_hooks)
    assert torch.allclose(found.norms, alone(case)[0], rtol=1e-6)


def test_what_no_sample_sends_is_apart() -> None:
    model, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    penalty = 0.5 * 0.1

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        y = model(x)
        return y, y.square().mean() + penalty * model.weight.square().sum()

    found = sample_gradients(model, forward, 4)
    rest = dict(zip(found.names, found.rest, strict=True))
    own = (2 * penalty * model.weight.detach()).square().sum()
    assert float(rest["weight"]) == pytest.approx(float(own), rel=1e-9)
    assert float(rest["bias"]) == pytest.approx(0, abs=1e-20)


def test_batch_norm_mixes_and_adds_up() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten(),
        nn.Linear(144, 3),
    ).double()  # fmt: skip
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(0, 3, (6,))

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        scores = model(x)
        return scores, F.cross_entropy(scores, y)

    found = sample_gradients(model, forward, 6)
    assert found.mixing == ("1",)
    assert float(found.shares.sum()) == pytest.approx(1, abs=1e-9)
    assert all(p.grad is None for p in model.parameters())


def test_cosine_to_the_others() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    x = torch.tensor([[3.0, 0], [0, 4], [0, 4]], dtype=torch.float64)
    found = sample_gradients(model, lambda: ((y := model(x)), y.sum()), 3)
    assert found.norms.tolist() == pytest.approx([3, 4, 4])
    assert found.cosines.tolist() == pytest.approx([0, 0.8, 0.8])
    assert found.shares.tolist() == pytest.approx([9 / 73, 32 / 73, 32 / 73])


def test_no_rows_no_parts() -> None:
    class OnlyLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sum()

    model, x = OnlyLoss(), torch.randn(4, 3)
    with pytest.raises(NotSeparable, match="no output of the model has a row for each sample"):
        sample_gradients(model, lambda: ((y := model(x)), y), 4)
    with pytest.raises(NotSeparable, match="the loss has no graph"):
        sample_gradients(model, lambda: (x, x.sum()), 4)


@pytest.mark.parametrize("asked", range(5))
def test_it_ends_when_the_time_is_over(asked: int) -> None:
    """It asks before each of two parameters of a layer, and before each of three samples."""
    layer = nn.Linear(2, 2)
    model = nn.ModuleList([layer, nn.ParameterList([torch.ones(2)])])
    x, answers = torch.randn(3, 2), iter([True] * asked + [False])

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        y = layer(x) * model[1][0]
        return y, y.square().sum()

    with pytest.raises(TooSlow):
        sample_gradients(model, forward, 3, lambda: next(answers))
    assert next(answers, None) is None
