"""Calls told by their frames where hooks, wrappers and generators stand between; written views."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import gradscope
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report


class Net(nn.Module):
    """Runs a function of itself and its inputs; keyword arguments become its modules."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Doubled(nn.Linear):
    """Overrides ``__call__``, hooks and all."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2  # type: ignore[no-any-return]


def call(report: Report, name: str, number: int = 0) -> ModuleCall:
    return next(c for c in report.calls if (c.name, c.call) == (name, number))


def near(found: Any, expected: Tensor) -> bool:
    values = torch.tensor(found.values, dtype=torch.float64)
    return torch.allclose(values, expected.detach().double().reshape(-1), rtol=1e-5, atol=1e-7)


def hooked_always() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for module in model.modules():
        module.register_forward_hook(lambda *_: None, always_call=True)
    return model


@pytest.mark.parametrize(
    "make",
    [
        hooked_always,
        lambda: fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))),
        lambda: nn.Sequential(nn.Linear(2, 2), Doubled(2, 2)),
    ],
    ids=["always-call", "graph-module", "own-call"],
)
def test_calls_are_told_whatever_wraps_them(make: Callable[[], nn.Module]) -> None:
    model = make()
    report = gradscope.inspect(model, torch.randn(1, 2), loss="sum")
    last = model.get_submodule("1")
    factor = 2.0 if isinstance(last, Doubled) else 1.0
    assert [c.name for c in report.calls] == ["", "0", "1"]
    assert not any(c.notes for c in report.calls)
    weight = last.get_parameter("weight")
    assert near(call(report, "0").outputs[0].gradient, factor * weight.sum(0))
    assert near(call(report, "1").inputs[0].gradient, factor * weight.sum(0))


def test_a_caught_error_under_an_always_called_hook_is_no_return() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            net.bad(x[:, :1])
        return net.good(x)  # type: ignore[no-any-return]

    model = Net(forward, bad=nn.Sequential(nn.Linear(2, 2)), good=nn.Linear(2, 2))
    model.get_submodule("bad").register_forward_hook(lambda *_: None, always_call=True)
    report = gradscope.inspect(model, torch.randn(1, 2), loss="sum")
    assert call(report, "bad").notes == ("did-not-return",)
    assert call(report, "good").notes == ()
    assert near(call(report, "good").outputs[0].gradient, torch.ones(2))


def test_a_module_that_returns_a_generator_has_the_calls_that_it_yields() -> None:
    def rounds(net: Any, x: Tensor) -> Iterator[Tensor]:
        return (net.layer(x) for _ in range(2))

    def forward(net: Any, x: Tensor) -> Any:
        return sum(net.head(y) for y in net.rounds(x))

    layers = Net(rounds, layer=nn.Linear(2, 2))
    model = Net(forward, rounds=layers, head=nn.Linear(2, 2))
    report = gradscope.inspect(model, torch.randn(1, 2), loss="sum")
    for number in range(2):
        found = call(report, "rounds.layer", number)
        assert found.notes == ()
        assert near(found.outputs[0].gradient, model.get_parameter("head.weight").sum(0))


def test_slices_written_by_one_module_after_another() -> None:
    class Overwrite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x[:, 0] = x[:, 1] * 2
            return x

    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x[:, 0].mul_(3)
            return x

    model = nn.Sequential(nn.Linear(2, 2), Overwrite(), Scale(), nn.Linear(2, 2))
    report = gradscope.inspect(model, torch.ones(1, 2), loss="sum")
    a, b = model.get_parameter("3.weight").sum(0).tolist()
    expected = {"0": (0.0, b + 6 * a), "1": (3 * a, b), "2": (a, b)}
    for name, gradient in expected.items():
        assert near(call(report, name).outputs[0].gradient, torch.tensor(gradient))
