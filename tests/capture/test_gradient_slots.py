"""A gradient that comes by again is not reduced again, unless it was written to in between."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope
from gradscope.capture import gradients
from gradscope.capture.gradients import GradientCache
from gradscope.capture.stats import measure


@pytest.fixture
def reduced(monkeypatch):
    """The sizes of the gradients that were reduced, in turn."""
    sizes: list[int] = []

    def counted(tensor: torch.Tensor):
        sizes.append(tensor.numel())
        return measure(tensor)

    monkeypatch.setattr(gradients, "measure", counted)
    return sizes


def test_the_same_tensor_is_reduced_once(reduced):
    cache, tensor = GradientCache(), torch.randn(20)
    assert cache.measured(tensor) is cache.measured(tensor)
    assert reduced == [20]


def test_a_write_in_between_is_seen(reduced):
    cache, tensor = GradientCache(), torch.ones(20)
    cache.measured(tensor)
    assert cache.measured(tensor.mul_(2)).max == 2.0
    assert reduced == [20, 20]


def test_another_tensor_with_a_freed_ones_id_is_reduced(reduced):
    cache = GradientCache()
    for value in range(50):
        assert cache.measured(torch.full((20,), float(value))).max == value
    assert len(reduced) == 50


class Residual(nn.Module):
    """Both branches, and the sum after them, get one and the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.after = nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.left(x) + self.right(x))


def test_a_sum_hands_one_gradient_to_both_branches(reduced):
    report = gradscope.inspect(Residual(), torch.randn(4, 8), loss="sum")
    calls = {call.name: call for call in report.calls}
    one = calls["left"].outputs[0].gradient
    assert one is not None
    assert one == calls["right"].outputs[0].gradient == calls["after"].inputs[0].gradient
    assert reduced.count(32) == 2  # before and after the Tanh


class Block(nn.Module):
    """All that its input goes into is inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x


def test_a_block_that_takes_all_of_its_input_shares_the_producers_gradient(reduced):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Block())
    x = torch.randn(4, 8)
    report = gradscope.inspect(model, x, loss="sum")
    calls = {call.name: call for call in report.calls}
    hidden = model[0](x).detach().requires_grad_()
    model[1](hidden).sum().backward()
    assert calls["1"].inputs[0].gradient == calls["0"].outputs[0].gradient
    assert calls["1"].inputs[0].gradient.norm == pytest.approx(hidden.grad.norm().item(), rel=1e-5)
    inner = calls["1.body"].inputs[0].gradient  # without the way around the body
    assert inner.norm == pytest.approx((hidden.grad - 1).norm().item(), rel=1e-5)
