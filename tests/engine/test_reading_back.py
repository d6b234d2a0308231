"""What an accelerator holds is waited for once a step: the processor here stands in for one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import gradscope
from gradscope.capture import stats, sweep

READS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "cpu")


class Pictures(nn.Module):
    """Batch norm writes to buffers, the embedding is shared, a block is in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.stem(x).mean((2, 3)))


def inspect(**more):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 12, 12)
    target = torch.arange(4)
    return gradscope.inspect(Pictures(), x, target=target, loss="cross_entropy", **more)


@pytest.fixture
def reads(monkeypatch):
    """The names of what was called to get at numbers, while nothing is on the host."""
    called = []

    def counted(name, function):
        def read(tensor, *args, **kwargs):
            called.append(name)
            return function(tensor, *args, **kwargs)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(stats, "on_host", lambda tensor: False)
    monkeypatch.setattr(sweep, "on_host", lambda tensor: False)
    return called


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 1),
        ({"layers": ("stem.*",)}, 1),
        # Of each step its history and its parameters, and how far its optimizer moved them.
        ({"steps": 3, "optimizer": partial(torch.optim.SGD, lr=0.1)}, 9),
    ],
)
def test_numbers_are_read_back_together(reads, more, expected):
    report = inspect(**more)
    assert report.error is None
    assert reads == ["tolist"] * expected


def test_what_is_read_back_is_what_the_processor_gives(monkeypatch):
    here = inspect(mode="train")
    monkeypatch.setattr(stats, "on_host", lambda tensor: False)
    monkeypatch.setattr(sweep, "on_host", lambda tensor: False)
    there = inspect(mode="train")
    assert there.loss == here.loss
    assert [f.written for f in there.modules] == [f.written for f in here.modules]
    assert any(f.written for f in here.modules)
    pairs = [(p.value, q.value) for p, q in zip(here.parameters, there.parameters, strict=True)]
    pairs += [
        (p.gradient, q.gradient) for p, q in zip(here.parameters, there.parameters, strict=True)
    ]
    for call, other in zip(here.calls, there.calls, strict=True):
        for one, two in zip(call.outputs, other.outputs, strict=True):
            pairs += [(one.activation, two.activation), (one.gradient, two.gradient)]
    for one, two in pairs:
        assert (one.shape, one.zeros) == (two.shape, two.zeros)
        for name in ("norm", "mean", "std", "min", "max"):
            scale = one.norm or 1.0
            assert getattr(two, name) == pytest.approx(
                getattr(one, name), rel=1e-5, abs=1e-6 * scale
            )


@pytest.mark.parametrize(("factor", "word"), [(float("nan"), "nan"), (-float("inf"), "-inf")])
def test_a_loss_that_is_no_number_is_told_from_there_too(reads, factor, word):
    report = gradscope.inspect(
        nn.Linear(3, 1), torch.ones(2, 3), loss=lambda y: y.sum().exp() * factor
    )
    assert (report.loss, report.loss_nonfinite) == (None, word)
