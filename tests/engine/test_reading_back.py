"""An accelerator is waited for once a step: the processor here stands in for one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import gradscope
from gradscope.capture import stats, updates
from gradscope.records.tensors import TensorStats

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

    # The first optimizer of a process has torch 2.8 compute with tensors of its own.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(stats, "on_host", lambda tensor: False)
    monkeypatch.setattr(updates, "on_host", lambda tensor: False)
    return called


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 1),
        ({"layers": ("stem.*",)}, 1),
        # Of each step its history and its parameters, how far its optimizer moved them, and where.
        ({"steps": 3, "optimizer": partial(torch.optim.SGD, lr=0.1)}, 12),
    ],
)
def test_numbers_are_read_back_together(reads, more, expected):
    report = inspect(**more)
    assert report.error is None
    assert reads == ["tolist"] * expected


def test_what_is_read_back_is_what_the_processor_gives(monkeypatch):
    here = inspect(mode="train")
    monkeypatch.setattr(stats, "on_host", lambda tensor: False)
    monkeypatch.setattr(updates, "on_host", lambda tensor: False)
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


class Mapped(nn.Module):
    """Its layer runs inside vmap, where a tensor has no numbers to read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.mapped = nn.Linear(4, 2)

    def forward(self, x):
        return torch.func.vmap(self.mapped)(self.first(x))


def test_what_cannot_be_read_takes_nothing_else_along(reads):
    report = gradscope.inspect(Mapped(), torch.randn(5, 3), loss="sum")
    assert report.loss is not None
    calls = {call.name: call.outputs[0].activation for call in report.calls}
    assert calls["first"].norm is not None
    assert calls["mapped"].norm is None
    assert gradscope.inspect(nn.Linear(3, 1), torch.randn(5, 3), loss="sum").loss is not None


def test_a_device_that_answers_nothing_is_an_error(monkeypatch):
    deferred = stats.Deferred(TensorStats((2,), "float32", 2), torch.zeros(8), None)
    monkeypatch.setattr(torch, "cat", lambda pieces: torch.empty(8, device="meta"))
    with pytest.raises(RuntimeError):
        stats.resolve([deferred])


class Wrapped(torch.Tensor):
    """A loss that gives its number to ``item`` alone."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [a.inner if isinstance(a, Wrapped) else a for a in args]
        found = func(*args, **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Wrapped(x.clone())

    @staticmethod
    def backward(ctx, gradient):
        return gradient.inner if isinstance(gradient, Wrapped) else gradient


def test_a_loss_that_wraps_a_tensor_has_its_number():
    torch.manual_seed(0)
    net, x = nn.Linear(3, 1), torch.randn(5, 3)
    report = gradscope.inspect(net, x, loss=lambda y: Wrap.apply(y.sum()))
    assert report.loss == pytest.approx(net(x).sum().item())


class Settles(nn.Module):
    """Its backward turns a dropout off, which the forward ran with."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 4), nn.Dropout(0.5)

    def forward(self, x):
        y = self.drop(self.fc(x))
        y.register_hook(lambda gradient: self.drop.eval() and None)
        return y


def test_facts_are_those_of_the_forward():
    report = gradscope.inspect(Settles(), torch.randn(5, 3), loss="sum", mode="train")
    assert {f.name: f.training for f in report.modules}["drop"] is True
