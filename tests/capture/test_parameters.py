"""Parameters that no pattern selects are only asked whether they are finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradscope.capture.parameters import parameter_stats


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def test_what_is_not_selected_is_passed_over():
    net = model()
    net(torch.randn(2, 64)).sum().backward()
    full = {p.name: p for p in parameter_stats(net)}
    found = {p.name: p for p in parameter_stats(net, shown=[net[2]])}
    assert found["2.weight"] == full["2.weight"]
    passed = found["0.weight"].value
    assert (passed.norm, passed.nan, passed.inf) == (None, 0, 0)
    assert (passed.shape, passed.dtype, passed.numel) == ((64, 64), "float32", 4096)
    assert found["0.weight"].gradient == full["0.weight"].gradient
    assert found["0.weight"].gradient is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_counted_all_the_same(value):
    net = model()
    with torch.no_grad():
        net[0].weight[3, 4] = value
    found = {p.name: p.value for p in parameter_stats(net, shown=[])}
    assert found["0.weight"].nan + found["0.weight"].inf == 1


@pytest.mark.parametrize(
    "parameter",
    [
        torch.empty(0, 5),
        torch.full((4,), 3e38),
        torch.zeros(20, dtype=torch.float64),
        torch.ones(20, dtype=torch.bfloat16),
        torch.arange(20),
        torch.ones(20, dtype=torch.complex64),
        torch.ones(4, 5).to_sparse(),
        torch.ones(20).to(torch.float8_e4m3fn),
        torch.ones(4, 5, device="meta"),
    ],
    ids=lambda t: f"{t.dtype}-{t.layout}-{t.device.type}-{t.numel()}",
)
def test_odd_parameters_are_no_trouble(parameter):
    net = model()
    net.odd = nn.Parameter(parameter, requires_grad=False)
    found = {p.name: p.value for p in parameter_stats(net, shown=[net[2]])}
    full = {p.name: p.value for p in parameter_stats(net)}
    assert (found["odd"].nan, found["odd"].inf) in {
        (full["odd"].nan, full["odd"].inf),
        (0, 0) if parameter.is_floating_point() else None,
    }
    assert found["odd"].shape == full["odd"].shape
    assert found["0.weight"].norm is None
    assert found["2.weight"] == full["2.weight"]
