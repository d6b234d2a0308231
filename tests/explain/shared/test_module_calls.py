"""The module call that runs and makes a node; a recomputed call is the call it repeats."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.explain.shared.tracing_modes import ModuleCalls


class Layer(nn.Linear):
    """Notes the call that it runs in."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.calls: ModuleCalls | None = None
        self.seen: list[tuple[str, int, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        call = self.calls.innermost() if self.calls else None
        assert call is not None
        self.seen.append((call.name, call.number, call.recomputed))
        return super().forward(x)


class Net(nn.Module):
    """A layer that is called twice, the second time in a checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer = Layer()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_that_runs_again_in_backward_is_the_same_call(reentrant: bool) -> None:
    net = Net(reentrant)
    net.layer.calls = calls = ModuleCalls(net, Net.forward.__code__)
    with hooked(hookable_modules(net), calls.enter, calls.leave):
        net(torch.ones(1, 3)).sum().backward()
    assert net.layer.seen == [("layer", 0, False), ("layer", 1, False), ("layer", 1, True)]
    assert calls.innermost() is None  # though a checkpoint leaves a call once it has what it needs


def test_the_call_that_made_a_node() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    calls = ModuleCalls(net, test_the_call_that_made_a_node.__code__)
    with hooked(hookable_modules(net), calls.enter, calls.leave):
        out = net(torch.ones(1, 3))
    loss = out.sum()
    assert loss.grad_fn is not None and out.grad_fn is not None
    makers = calls.makers([loss.grad_fn, out.grad_fn])
    assert [None if made is None else made.name for made in makers] == [None, "1"]


def test_a_call_that_raised_is_left_with_the_one_around_it() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fails()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.inner(x)
            except ZeroDivisionError:
                return x

    net = Catches()
    calls = ModuleCalls(net, Catches.forward.__code__)
    with hooked(hookable_modules(net), calls.enter, calls.leave):
        net(torch.ones(1))
        assert calls.innermost() is None
    assert calls.called == {net, net.inner}
