"""Small tensors measured as rows of one matrix say the same as each measured alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from capture.test_stats import differences

from gradscope.capture import stats as small_tensors
from gradscope.capture.reductions import BLOCK
from gradscope.capture.stats import SMALL, measure, measure_all, resolve

ROWS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "of one size": lambda: [torch.randn(64) for _ in range(5)],
    "of several sizes": lambda: [torch.randn(n) for n in (64, 128, 64, 3, 128, BLOCK, BLOCK, 9000)],
    "of several dtypes": lambda: [
        torch.randn(64).to(dtype)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        for _ in range(2)
    ],
    "of several shapes": lambda: [torch.randn(8, 8), torch.randn(64), torch.randn(16, 4).t()],
    "equal values": lambda: [torch.full((100,), 0.3), torch.zeros(100), torch.full((100,), -0.0)],
    "ends of float32": lambda: [torch.full((50,), v) for v in (3e38, -1e30, 1e-30, 1e-45)],
    "a mean far from the spread": lambda: [1e6 + torch.randn(1000) for _ in range(3)],
    "not finite": lambda: [
        torch.tensor([math.nan, 1.0, 0.0] * 10),
        torch.tensor([math.inf, -math.inf, 2.0] * 10),
        torch.full((30,), math.nan),
        torch.ones(30),
    ],
    "expanded": lambda: [torch.tensor(2.0).expand(64), torch.randn(64)],
    "integers and truths": lambda: [torch.arange(64), torch.arange(64), torch.arange(64) > 3],
    "parameters": lambda: [torch.nn.Parameter(torch.randn(64)) for _ in range(2)],
    "none": list,
}


@pytest.fixture(params=ROWS, ids=str)
def tensors(request: pytest.FixtureRequest) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return ROWS[request.param]()


def test_rows_are_true(tensors, way):
    found = measure_all(tensors)
    assert len(found) == len(tensors)
    for stats, tensor in zip(found, tensors, strict=True):
        alone = measure(tensor)
        assert differences(stats, tensor.detach()) == []
        facts = (stats.shape, stats.dtype, stats.numel, stats.values)
        assert facts == (alone.shape, alone.dtype, alone.numel, alone.values)


def test_more_rows_than_are_held_at_once(monkeypatch):
    monkeypatch.setattr(small_tensors, "_ROWS", 3 * 64)
    tensors = [torch.randn(64) for _ in range(10)]
    for stats, tensor in zip(measure_all(tensors), tensors, strict=True):
        assert differences(stats, tensor) == []


def test_each_record_is_its_own():
    """``resolve`` tells them by ``id``."""
    found = measure_all([torch.ones(64)] * 3 + [torch.ones(SMALL)])
    assert len(resolve(found)) == 4


def test_lazy_and_meta_parameters_are_measured_alone():
    lazy = torch.nn.LazyLinear(64).weight
    meta = torch.nn.Parameter(torch.zeros(64, device="meta"))
    found = measure_all([lazy, meta, torch.ones(64), torch.ones(64)])
    assert [stats.norm for stats in found] == [None, None, 8.0, 8.0]


def test_parameters_that_need_gradients_are_left_alone():
    parameters = [torch.nn.Parameter(torch.randn(64)) for _ in range(2)]
    before = [p.detach().clone() for p in parameters]
    measure_all(parameters)
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
    assert [p._version for p in parameters] == [0, 0]
