"""Programs that are given a NaN or Inf, or whose optimizer makes one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.non_finite.cases import Program, origin

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
NAN = float("nan")
INF = float("inf")


@origin("nan", "input", None, "x.0", "1 of 12 values", None)
def a_missing_cell_in_the_table(mended: bool) -> Program:
    """Tabular data read from a file with an empty cell."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = X.clone()
    x[1, 2] = 0.0 if mended else NAN
    return Program(net, lambda: F.cross_entropy(net(x), Y), inputs={"x": (x,)})


@origin("nan", "input", None, "0", "1 of 12 values", None)
def a_missing_cell_that_nobody_listed(mended: bool) -> Program:
    """The same, where only the model's own call tells what went in."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x = X.clone()
    x[1, 2] = 0.0 if mended else NAN
    return Program(net, lambda: F.cross_entropy(net(x), Y))


@origin("inf", "input", None, "x", "2 of 12 values", None)
def a_feature_that_was_divided_by_zero(mended: bool) -> Program:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    x = X.clone()
    if not mended:
        x[0, 1], x[2, 1] = INF, -INF
    return Program(net, lambda: F.cross_entropy(net(x), Y), inputs={"x": x})


@origin("nan", "input", None, "target", "of 3 values", None)
def a_target_without_a_measurement(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    y = torch.tensor([[1.0], [0.0 if mended else NAN], [2.0]])
    return Program(net, lambda: F.mse_loss(net(X), y), inputs={"x": X, "target": y})


@origin("nan", "parameter", None, "1.weight", "of 16 values", None)
def a_checkpoint_with_a_broken_layer(mended: bool) -> Program:
    """Saved after the run had diverged."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with torch.no_grad():
        net[1].weight[0, 3] = 0.0 if mended else NAN
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@origin("inf", "parameter", None, "scale", "1 of 1 values", None)
def a_scale_that_has_run_away(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.scale = nn.Parameter(torch.tensor(1.0 if mended else INF))

        def forward(self, x):
            return self.fc(x) * self.scale

    net = Net()
    return Program(net, lambda: net(X).pow(2).mean())


@origin("nan", "parameter", None, "bn.running_var", "of 4 values", None)
def running_statistics_that_are_lost(mended: bool) -> Program:
    """One bad batch and BatchNorm's running variance is NaN for good: only eval shows it."""
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("bn", nn.BatchNorm1d(4))
    net.eval()
    if not mended:
        net.bn.running_var.fill_(NAN)
    return Program(net, lambda: net(X).pow(2).mean())


@origin("nan", "parameter", None, "weight", "4 of 8 values", None)
def a_parameter_that_nothing_initialised(mended: bool) -> Program:
    """`nn.Parameter(torch.empty(…))`: whatever the memory held, here NaN in half of it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, 4))
            with torch.no_grad():
                self.weight.copy_(torch.ones(2, 4))
                if not mended:
                    self.weight[0] = NAN

        def forward(self, x):
            return x @ self.weight.T

    net = Net()
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@origin("inf", "step", "SGD.step", "weight", "above float32's largest 3.4e+38")
def a_learning_rate_typed_wrong(mended: bool) -> Program:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3 if mended else 3e38)

    def step():
        optimizer.step()  # origin

    def forward():
        return F.cross_entropy(net(X), Y) * 40

    return Program(net, forward, step)


@origin("nan", "step", "Adam.step", "unused", "0 / 0")
def adam_without_eps(mended: bool) -> Program:
    """eps=0, and a parameter whose gradient has been 0 from the start."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.fc(x) + 0 * self.unused

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8 if mended else 0.0)

    def step():
        optimizer.step()  # origin

    return Program(net, lambda: F.cross_entropy(net(X), Y), step)


@origin("nan", "step", "Adam.step", "weight", "0 / 0")
def adam_in_half_precision(mended: bool) -> Program:
    """pytorch issue 8860: eps=1e-8 is 0 in float16, and so is the square of a small gradient."""
    net = nn.Linear(4, 2, bias=False).half()
    net.weight.data.zero_()
    optimizer = torch.optim.Adam(net.parameters(), eps=1e-4 if mended else 1e-8)

    def step():
        optimizer.step()  # origin

    return Program(net, lambda: (net(X.half()) * 0).float().sum(), step)


@origin("inf", "step", "SGD.step", "a.weight", "above float32's largest 3.4e+38")
def many_parameters_at_once(mended: bool) -> Program:
    """The form of the step that works on lists of parameters."""
    net = nn.ModuleDict({"b": nn.Linear(4, 2, bias=False), "a": nn.Linear(4, 2, bias=False)})
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3 if mended else 1e34, foreach=True)

    def step():
        optimizer.step()  # origin

    return Program(net, lambda: (net["a"](X[2:]) * 1e6 + net["b"](X[2:])).sum(), step)


@origin("nan", "forward", "batch_norm", "bn", "a running variance of -1")
def a_running_variance_below_zero(mended: bool) -> Program:
    """Weights averaged or extrapolated between checkpoints, buffers included."""
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("bn", nn.BatchNorm1d(4))
    net.eval()
    net.bn.running_var[2] = 1.0 if mended else -1.0

    def forward():
        return net(X).pow(2).mean()  # origin

    return Program(net, forward)


@origin("nan", "forward", "_weight_norm", "parametrizations.weight.0", "a direction of length 0")
def weight_norm_of_a_layer_of_zeros(mended: bool) -> Program:
    """`weight_norm` on a layer whose weight was initialised with zeros."""
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 1.0 if mended else 0.0)
    nn.utils.parametrizations.weight_norm(net)

    def forward():
        return net(X).pow(2).mean()  # origin

    return Program(net, forward)


@origin("nan", "parameter", None, "backbone.weight", "of 16 values", None)
def a_frozen_backbone_that_is_broken(mended: bool) -> Program:
    net = nn.Sequential()
    net.add_module("backbone", nn.Linear(4, 4))
    net.add_module("head", nn.Linear(4, 2))
    net.backbone.requires_grad_(False)
    if not mended:
        net.backbone.weight.data[1, 1] = float("nan")
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@origin("nan", "step", "RMSprop.step", "dead", "0 / 0")
def rmsprop_without_eps(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.dead = nn.Parameter(torch.zeros(4))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x * (1 + self.dead * 0))

    net = Net()
    optimizer = torch.optim.RMSprop(net.parameters(), eps=1e-8 if mended else 0.0)

    def step():
        optimizer.step()  # origin

    return Program(net, lambda: F.cross_entropy(net(X), Y), step)


@origin("nan", "step", "clip_grad_norm_", None, "0 · inf")
def clipping_by_a_norm_that_overflows(mended: bool) -> Program:
    """The norm of huge gradients is inf, the factor 0: but one gradient is inf itself."""
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        net.bias.grad[0] = 1.0 if mended else INF
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # origin
        optimizer.step()

    return Program(net, lambda: F.cross_entropy(net(X), Y), step)
