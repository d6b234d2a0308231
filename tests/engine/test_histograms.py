"""Histograms against a count by hand: exact, whatever the values are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gradscope
from gradscope.errors import LayerError
from gradscope.records.full_samples import Histogram
from gradscope.running.histograms import counted


def by_hand(values: list[float]) -> dict[tuple[int, int], int]:
    """Counts by sign and power of two."""
    found: dict[tuple[int, int], int] = {}
    for x in values:
        if math.isfinite(x) and x != 0:
            key = (1 if x > 0 else -1, math.frexp(x)[1] - 1)
            found[key] = found.get(key, 0) + 1
    return found


def in_bins(histogram: Histogram) -> dict[tuple[int, int], int]:
    return {
        (sign, histogram.first + i): n
        for sign, side in ((-1, histogram.negative), (1, histogram.positive))
        for i, n in enumerate(side)
        if n
    }


TENSORS = {
    "normal": torch.randn(3000),
    "powers, each the first of its bin": torch.tensor([1.0, 2.0, 4.0, -0.5, 0.25, 0.0]),
    "just below a power": torch.nextafter(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])),
    "subnormal": torch.tensor([1e-45, 2e-40, -3e-39]),
    "float64 at its ends": torch.tensor([5e-324, 1.7e308], dtype=torch.float64),
    "not finite": torch.tensor([math.nan, math.inf, -math.inf, 1.0]),
    "nothing": torch.zeros(0),
    "zeros": torch.zeros(4),
    "half": torch.tensor([65504.0, 6e-8, -1.0], dtype=torch.float16),
    "integers": torch.tensor([0, 1, -7, 8]),
    "sparse": torch.tensor([[0.0, 3.0], [0.0, 0.0]]).to_sparse(),
    "more than a chunk": torch.arange(1.0, 1_200_000.0),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_counts(tensor: torch.Tensor) -> None:
    found = Histogram("", "value", "", **counted(tensor))
    values = tensor.to_dense().double().flatten().tolist()
    assert in_bins(found) == by_hand(values)
    assert found.zeros == values.count(0)
    assert found.nan == sum(map(math.isnan, values))
    assert found.inf == sum(map(math.isinf, values))
    total = sum(found.negative) + sum(found.positive) + found.zeros + found.nan + found.inf
    assert total == found.numel == len(values)
    assert len(found.negative) == len(found.positive)
    for ends in (0, -1):  # no empty bin at either end
        if found.positive:
            assert found.negative[ends] + found.positive[ends]


def test_outputs_parameters_and_their_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    x = torch.randn(5, 3)
    report = gradscope.inspect(model, x, loss="sum", histogram=["0"])
    found = {(h.kind, h.path): h for h in report.histograms}
    assert list(found) == [
        *(("activation", ""), ("gradient", "")),
        *(("value", "0.weight"), ("gradient", "0.weight")),
        *(("value", "0.bias"), ("gradient", "0.bias")),
    ]
    before = model[0](x).detach()  # the ReLU behind it writes into it, later
    assert in_bins(found["activation", ""]) == by_hand(before.double().flatten().tolist())
    passed = (before > 0).double()
    assert in_bins(found["gradient", ""]) == by_hand(passed.flatten().tolist())
    assert in_bins(found["gradient", "0.bias"]) == by_hand(passed.sum(0).tolist())


def test_repeated_backwards_add_up() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    x = torch.ones(1, 1)
    report = gradscope.inspect(model, x, loss="sum", repeats=4, retain_graph=True, histogram=["0"])
    gradients = [h for h in report.histograms if h.kind == "gradient"]
    assert [h.first for h in gradients] == [2, 2, 2]  # 4 = 2², not four times 1


def test_an_unknown_layer_is_told_before_anything_runs() -> None:
    with pytest.raises(LayerError, match="conv9"):
        gradscope.inspect("demo", histogram=["conv9"])
