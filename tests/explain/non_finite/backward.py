"""Programs whose forward is finite, and whose backward is not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.non_finite.cases import Program, origin

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@origin("inf", "backward", "SqrtBackward0", "", "sqrt at 0")
def distance_of_a_point_to_itself(mended: bool) -> Program:
    """Triplet loss on a pair that is twice the same picture."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, a, b):
            gap = (self.fc(a) - self.fc(b)).pow(2).sum(-1)
            if mended:
                gap = gap + 1e-12
            return torch.sqrt(gap)  # origin

    net = Net()
    return Program(net, lambda: net(X, X).mean())


@origin("nan", "backward", "PowBackward0", "root", "0 ** 0.5")
def signed_square_root_of_nothing(mended: bool) -> Program:
    """Bilinear pooling: sign(x)·|x|**0.5 sends 0 back to a slope that is infinite."""

    class Root(nn.Module):
        def forward(self, x):
            size = x.abs() + (1e-8 if mended else 0.0)
            return x.sign() * size**0.5  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("root", Root())
    x = X.clone()
    x[1] = 0
    return Program(net, lambda: net(x).sum())


@origin("nan", "backward", "SqrtBackward0", "safe", "sqrt at 0")
def where_around_a_square_root(mended: bool) -> Program:
    """pytorch issues 36923, 52248: `where` picks the other side, and sends 0 · inf back."""

    class Safe(nn.Module):
        def forward(self, x):
            x = x.pow(2).sum(-1)
            if mended:
                return torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0)
            return torch.where(
                x > 0,
                torch.sqrt(x),  # origin
                0.0,
            )

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("safe", Safe())
    x = X.clone()
    x[1] = 0
    return Program(net, lambda: net(x).sum())


@origin("nan", "backward", "SqrtBackward0", None, "sqrt at 0")
def clamped_after_the_root(mended: bool) -> Program:
    """A guard on the wrong side: the clamp's gradient is 0, and 0 · inf is NaN."""
    net = nn.Linear(4, 4, bias=False)
    x = X.clone()
    x[1] = 0

    def forward():
        square = net(x).pow(2).sum(-1)
        if mended:
            return square.clamp(min=1e-6).sqrt().mean()
        return square.sqrt().clamp(min=1e-3).mean()  # origin

    return Program(net, forward)


@origin("inf", "backward", "AcosBackward0", None, "acos at 1")
def angle_between_equal_rotations(mended: bool) -> Program:
    """The geodesic distance of a rotation to itself; the slope of acos at 1 is infinite."""
    net = nn.Linear(4, 4)
    target = torch.tensor([1.0, 0.0, 0.0, 0.0])
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(target * 2)

    def forward():
        q = F.normalize(net(X), dim=-1)
        cos = (q * target).sum(-1)
        if mended:
            cos = cos.clamp(-1 + 1e-6, 1 - 1e-6)
        return torch.acos(cos).mean()  # origin

    return Program(net, forward)


@origin("inf", "backward", "AsinBackward0", "tilt", "asin at -1")
def pitch_of_a_vertical_pose(mended: bool) -> Program:
    class Tilt(nn.Module):
        def forward(self, x):
            return torch.asin(0.999 * x if mended else x)  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("tilt", Tilt())
    nn.init.eye_(net.fc.weight)
    return Program(net, lambda: net(X).sum())


@origin("nan", "backward", "HypotBackward0", "size", "hypot at (0, 0)")
def magnitude_of_a_silent_spectrum(mended: bool) -> Program:
    """Audio: the size of a complex bin that is exactly 0."""

    class Size(nn.Module):
        def forward(self, x):
            re, im = x.chunk(2, dim=-1)
            if mended:
                return torch.sqrt(re**2 + im**2 + 1e-12)
            return torch.hypot(re, im)  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("size", Size())
    return Program(net, lambda: net(torch.zeros(2, 4)).sum())


@origin("inf", "backward", "SqrtBackward0", "stats", "sqrt at 0")
def spread_of_a_constant_channel(mended: bool) -> Program:
    """Style loss: var().sqrt() of a channel that does not vary."""

    class Stats(nn.Module):
        def forward(self, x):
            eps = 1e-8 if mended else 0.0
            return (x.var(0) + eps).sqrt()  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("stats", Stats())
    nn.init.constant_(net.fc.weight, 0.0)
    return Program(net, lambda: net(X).sum())


@origin("inf", "backward", "SqrtBackward0", None, "sqrt at 0")
def root_mean_square_error_of_a_perfect_fit(mended: bool) -> Program:
    """RMSE = sqrt(mse): asked at the forum as "MseLossBackward0 returned nan"."""
    net = nn.Linear(4, 4, bias=False)
    nn.init.eye_(net.weight)
    return Program(
        net,
        lambda: torch.sqrt(F.mse_loss(net(X), X) + (1e-8 if mended else 0)),  # origin
    )


@origin("nan", "backward", "LinalgEighBackward0", "spectrum", "equal eigenvalues")
def eigenvectors_of_equal_eigenvalues(mended: bool) -> Program:
    """Whitening a covariance that is a multiple of the identity."""

    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = nn.Parameter(torch.zeros(3))

        def forward(self):
            extra = torch.arange(3) * 0.1 if mended else 0.0
            cov = torch.diag(self.log.exp() + extra)
            values, vectors = torch.linalg.eigh(cov)  # origin
            return vectors.abs().sum() + values.sum()

    net = nn.ModuleDict({"spectrum": Spectrum()})
    return Program(net, lambda: net["spectrum"]())


@origin("nan", "backward", "LinalgSvdBackward0", None, "equal singular values")
def singular_vectors_of_an_orthogonal_matrix(mended: bool) -> Program:
    net = nn.Linear(3, 3, bias=False)
    nn.init.eye_(net.weight)
    if mended:
        with torch.no_grad():
            net.weight.mul_(torch.tensor([1.0, 2.0, 3.0]))

    def forward():
        u, s, _ = torch.linalg.svd(net(torch.eye(3)))  # origin
        return u.abs().sum() + s.sum()

    return Program(net, forward)


@origin("nan", "backward", "XlogyBackward0", None, "0 / 0")
def entropy_by_xlogy(mended: bool) -> Program:
    """x·log x is 0 at 0, its slope is NaN or Inf there."""
    net = nn.Linear(4, 3)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 0.0, -200.0]))

    def forward():
        p = net(X).softmax(-1)
        if mended:
            p = p.clamp(min=1e-9)
        return torch.xlogy(p, p).sum()  # origin

    return Program(net, forward)


@origin("inf", "backward", "ToCopyBackward0", "", "float16's largest 65504")
def loss_scale_too_large_for_half(mended: bool) -> Program:
    """A fixed loss scale of 2^16: the first gradient in float16 overflows."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4).half()

        def forward(self, x):
            return self.fc(x).float()  # origin

    net = Net()
    scale = 2.0**7 if mended else 2.0**16
    return Program(net, lambda: net(X.half()).sum() * scale)


@origin("inf", "backward", "UnitBackward", "unit", "division by zero")
def a_function_of_ones_own_with_a_quotient(mended: bool) -> Program:
    """A custom autograd function whose backward divides by what was saved."""

    class Unit(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs().sqrt()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            root = x.abs().sqrt()
            if mended:
                root = root.clamp(min=1e-6)
            return grad / root  # origin

    class Layer(nn.Module):
        def forward(self, x):
            return Unit.apply(x)

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("unit", Layer())
    return Program(net, lambda: net.unit(net.fc(torch.ones(2, 4)) * torch.zeros(4)).sum())


@origin("inf", "backward", "MulBackward0", "cell", "above float32's largest 3.4e+38")
def gradient_that_explodes_through_time(mended: bool) -> Program:
    """The state stays tiny; the gradient grows by 1e10 in each of five steps."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(1.0 if mended else 1e10))

        def forward(self, h):
            return h * self.gain  # origin

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.full((2,), 1e-38))
            self.cell = Cell()

        def forward(self):
            h = self.start
            for _ in range(5):
                h = self.cell(h)
            return h

    net = Net()
    return Program(net, lambda: net().sum() * 1e-6)


@origin("nan", "backward", "SqrtBackward0", "gru", "sqrt at 0")
def masked_steps_of_a_padded_sequence(mended: bool) -> Program:
    """The padded steps are multiplied by 0 after the root: 0 · inf all the same."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x, keep):
            size = self.fc(x).pow(2).sum(-1)
            if mended:
                size = size + 1e-12
            return size.sqrt() * keep  # origin

    net = nn.ModuleDict({"gru": Steps()})
    x = X.clone()
    x[2] = 0
    keep = torch.tensor([1.0, 1.0, 0.0])
    return Program(net, lambda: net["gru"](x, keep).sum())


@origin("inf", "backward", "SqrtBackward0", None, "sqrt at 0")
def gradient_penalty_of_a_dead_critic(mended: bool) -> Program:
    """WGAN-GP: the norm of a gradient that is 0, differentiated again."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(net[0].bias, -9.0)

    def forward():
        x = X.clone().requires_grad_()
        score = net(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        square = slope.pow(2).sum(-1) + (1e-12 if mended else 0.0) + 0 * score[:, 0]
        norm = square.sqrt()  # origin
        return score.mean() + (norm - 1).pow(2).mean()

    return Program(net, forward)


@origin("inf", "backward", "PowBackward0", None, "0 ** 0.5")
def focal_weight_with_a_small_gamma(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    nn.init.constant_(net.weight, 0.0)
    nn.init.constant_(net.bias, 50.0)

    def forward():
        p = torch.sigmoid(net(X))
        rest = 1 - p
        if mended:
            rest = rest.clamp(min=1e-6)
        return (rest**0.5).mean()  # origin

    return Program(net, forward)
