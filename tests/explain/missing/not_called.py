"""Programs whose parameters are never used."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from explain.missing.cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("not-called", "unused", mark=None)
def layer_forgotten_in_forward(mended: bool) -> Program:
    """DDP's "parameters that were not used in producing loss"."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.unused, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.a(x)
            if mended:
                h = self.unused(h)
            return self.b(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-called", "layers.2", mark=None)
@case("not-called", "layers.3", mark=None)
def last_layers_skipped(mended: bool) -> Program:
    """speechbrain #2340: features are taken at an inner layer, those above never run."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(4))

        def forward(self, x):
            for layer in self.layers[: 4 if mended else 2]:
                x = layer(x)
            return x

    net = Net()
    return net, lambda: net(X).square().mean()


@case("not-called", "norm", mark=None)
def scale_forgotten_in_own_module(mended: bool) -> Program:
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.shift = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            x = F.layer_norm(x, (4,)) + self.shift
            return x * self.scale if mended else x

    net = nn.Sequential()
    net.add_module("norm", Norm())
    return net, lambda: net(X).square().sum()


@case("not-called", "drop", mark=None)
def branch_by_a_flag(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self, use_skip=False):
            super().__init__()
            self.use_skip = use_skip
            self.main, self.drop = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.main(x) + (self.drop(x) if self.use_skip else 0)

    net = Net(use_skip=mended)
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-called", "ema", mark=None)
def ema_copy_only_updated(mended: bool) -> Program:
    """The average is updated in each step, but nothing reads it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)
            self.ema = copy.deepcopy(self.net)
            if mended:
                self.ema.requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for e, p in zip(self.ema.parameters(), self.net.parameters(), strict=True):
                    e.mul_(0.9).add_(p, alpha=0.1)
            return self.net(x)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-called", "ema", mark=None)
def ema_updated_through_data(mended: bool) -> Program:
    nets = nn.ModuleDict({"net": nn.Linear(4, 2), "ema": nn.Linear(4, 2)})
    if mended:
        nets["ema"].requires_grad_(False)

    def step():
        for e, p in zip(nets["ema"].parameters(), nets["net"].parameters(), strict=True):
            e.data.mul_(0.9).add_(p.data, alpha=0.1)
        return F.cross_entropy(nets["net"](X), Y)

    return nets, step


@case("not-called", "experts.2", mark=None)
def expert_no_token_chose(mended: bool) -> Program:
    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            g = self.gate(x).softmax(1)
            choice = torch.tensor([0, 1, 2 if mended else 0])
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows = (choice == i).nonzero()[:, 0]
                if len(rows):
                    out[rows] = g[rows, i, None] * expert(x[rows])
            return out

    net = MoE()
    return net, lambda: net(X).square().mean()


@case("not-called", "fc", mark=None)
def functional_call_with_copies(mended: bool) -> Program:
    """Meta-learning: the model runs with fast weights that are not its own."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x)

    net = Net()
    fast = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}

    def step():
        given = dict(net.named_parameters()) if mended else fast
        return F.cross_entropy(torch.func.functional_call(net, given, (X,)), Y)

    return net, step


@case("not-called", "adapter", mark=None, name="adapter.up")
def adapter_of_an_early_return(mended: bool) -> Program:
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Parameter(torch.ones(4, 2)), nn.Parameter(torch.ones(2, 4))

        def forward(self, x):
            if not mended:
                return x
            return x + x @ self.up @ self.down

    net = nn.Sequential()
    net.add_module("adapter", Adapter())
    net.add_module("out", nn.Linear(4, 2))
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-called", "token", mark=None)
def prompt_sliced_away(mended: bool) -> Program:
    """A prompt of length zero: the loop over it never begins."""

    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.vectors = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(2))

        def forward(self, x):
            for v in list(self.vectors)[: 2 if mended else 0]:
                x = x + v
            return x

    net = nn.Sequential()
    net.add_module("token", Prompt())
    net.add_module("out", nn.Linear(4, 2))
    return net, lambda: F.cross_entropy(net(X), Y)
