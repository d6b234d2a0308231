"""Costs of each call, on demand: operations against a count by hand; state is restored."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import gradscope


class Twice(nn.Module):
    """A layer that runs twice, on one and on three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.fc = nn.Linear(4, 5)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.fc(self.conv(x).mean((2, 3)))
        return self.act(once) + self.fc(torch.ones(3, 4)).sum(0)


def test_operations_are_those_of_the_products() -> None:
    report = gradscope.inspect(Twice(), torch.randn(1, 3, 8, 8), loss="sum", costs=True)
    found = {(call.name, call.call): call.flops for call in report.calls}
    conv, once, thrice = 2 * 36 * 4 * 27, 2 * 4 * 5, 2 * 3 * 4 * 5
    assert found == {
        ("", 0): conv + once + thrice,
        ("conv", 0): conv,
        ("fc", 0): once,
        ("fc", 1): thrice,
        ("act", 0): 0,
    }
    assert all(call.seconds is not None and call.seconds > 0 for call in report.calls)


def test_nothing_is_measured_unasked() -> None:
    report = gradscope.inspect(Twice(), torch.randn(1, 3, 8, 8), loss="sum")
    assert {(call.flops, call.seconds) for call in report.calls} == {(None, None)}


def test_parameters_of_a_module_and_below_each_once() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(3, 2)), nn.ReLU())
    report = gradscope.inspect(model, torch.randn(2, 3), loss="sum")
    assert [(call.name, call.parameters) for call in report.calls if call.call == 0] == [
        *(("", 20), ("0", 12), ("1", 20), ("1.1", 8), ("2", 0)),
    ]


def test_the_buffers_and_gradients_of_a_live_model_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradscope.inspect(model, torch.randn(4, 3), loss="sum", costs=True, histogram=["1"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_meta_has_operations_and_no_seconds() -> None:
    report = gradscope.inspect("demo", device="meta", costs=True)
    (conv,) = (call for call in report.calls if call.name == "conv1")
    assert conv.flops == 2 * 24 * 24 * 10 * 25
    assert conv.seconds is None


def test_a_layer_left_by_an_exception_costs_nothing_else_its_time() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fc = Inner(), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(ValueError):
                self.inner(x)
            return self.fc(x)

    report = gradscope.inspect(Outer(), torch.randn(1, 2), loss="sum", costs=True)
    found = {call.name: call.flops for call in report.calls}
    assert found["fc"] == 8 and found[""] == 8 and found["inner"] is None
