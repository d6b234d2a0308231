"""More such programs, written when the code that judges them was there, and before it saw them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.birth_cases import Program, birth

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
INF = float("inf")


@birth("inf", "forward", "pow", "conv", "0 ** -0.5")
def degree_of_an_isolated_node(mended: bool) -> Program:
    """Graph convolution: D^-1/2 of a node without neighbours."""

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x, adjacency):
            degree = adjacency.sum(-1)
            if mended:
                degree = degree.clamp(min=1)
            scale = degree.pow(-0.5)  # born
            return scale[:, None] * (adjacency @ self.fc(x)) * scale[:, None]

    net = nn.ModuleDict({"conv": Conv()})
    adjacency = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    return Program(net, lambda: net["conv"](X, adjacency).pow(2).sum())


@birth("inf", "backward", "SqrtBackward0", None, "sqrt at 0")
def gradient_penalty_of_a_dead_critic(mended: bool) -> Program:
    """WGAN-GP: the norm of a gradient that is 0, differentiated once more."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(net[0].bias, -9.0)

    def forward():
        x = X.clone().requires_grad_()
        score = net(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        square = slope.pow(2).sum(-1) + (1e-12 if mended else 0.0) + 0 * score[:, 0]
        norm = square.sqrt()  # born
        return score.mean() + (norm - 1).pow(2).mean()

    return Program(net, forward)


@birth("inf", "loss", "div", None, "division by zero")
def transport_with_a_small_regulariser(mended: bool) -> Program:
    """Sinkhorn: exp(-cost / eps) is 0 everywhere in a row."""
    net = nn.Linear(4, 3)
    nn.init.constant_(net.bias, 9.0)

    def forward():
        kernel = torch.exp(-net(X).abs() / (10.0 if mended else 0.01))
        u = torch.ones(3) / 3 / kernel.sum(-1)  # born
        return (u[:, None] * kernel).pow(2).sum()

    return Program(net, forward)


@birth("inf", "forward", "logit", "inverse", "logit of 1")
def logit_of_a_hard_label(mended: bool) -> Program:
    class Inverse(nn.Module):
        def forward(self, p):
            return torch.logit(p, eps=1e-6 if mended else None)  # born

    net = nn.ModuleDict({"inverse": Inverse(), "fc": nn.Linear(3, 1)})
    p = torch.tensor([[0.2, 0.5, 1.0]])
    return Program(net, lambda: net["fc"](net["inverse"](p)).pow(2).sum())


@birth("inf", "forward", "atanh", "ball", "atanh of 1")
def distance_to_the_border_of_the_ball(mended: bool) -> Program:
    """Hyperbolic embeddings: a point that lies on the border."""

    class Ball(nn.Module):
        def forward(self, x):
            size = x.norm(dim=-1).clamp(max=1 - 1e-5 if mended else 1.0)
            return torch.atanh(size)  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("ball", Ball())
    nn.init.constant_(net.fc.bias, 5.0)
    return Program(net, lambda: net(X).sum())


@birth("inf", "loss", "poisson_nll_loss", None, "exp of ")
def counts_with_a_log_rate_that_ran_away(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    nn.init.constant_(net.bias, 1.0 if mended else 100.0)
    return Program(net, lambda: F.poisson_nll_loss(net(X), torch.ones(3, 1)))  # born


@birth("nan", "loss", "cosine_similarity", None, "0 / 0")
def similarity_of_nothing_without_eps(mended: bool) -> Program:
    net = nn.Linear(4, 4, bias=False)
    x = X.clone()
    x[0] = 0
    eps = 1e-8 if mended else 0.0
    return Program(net, lambda: F.cosine_similarity(net(x), X, dim=-1, eps=eps).sum())  # born


@birth("inf", "loss", "exp", None, "exp of 100")
def contrastive_loss_with_a_cold_temperature(mended: bool) -> Program:
    """InfoNCE written out: exp(1 / 0.01)."""
    net = nn.Linear(4, 4, bias=False)
    nn.init.eye_(net.weight)

    def forward():
        z = F.normalize(net(X), dim=-1)
        scores = z @ z.T / 0.01
        if mended:
            return F.cross_entropy(scores, torch.arange(3))
        e = torch.exp(scores.diagonal() + 1e-5)  # born
        return -torch.log(e / (e + 1)).mean()

    return Program(net, forward)


@birth("inf", "forward", "to", "attn", "float16")
def a_mask_for_float32_in_float16(mended: bool) -> Program:
    """The lowest float32 is -inf in float16, and a fully masked row then has no softmax."""

    class Attention(nn.Module):
        def forward(self, scores, keep):
            lowest = torch.finfo(torch.float16 if mended else torch.float32).min
            mask = (1 - keep) * lowest
            mask = mask.to(scores.dtype)  # born
            return (scores + mask).clamp(min=-60000 if mended else None, max=9).softmax(-1)

    net = nn.ModuleDict({"fc": nn.Linear(4, 4).half(), "attn": Attention()})
    keep = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    return Program(net, lambda: net["attn"](net["fc"](X.half()), keep).float().pow(2).sum())


@birth("inf", "backward", "PowBackward0", None, "0 ** 0.5")
def focal_weight_with_a_small_gamma(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    nn.init.constant_(net.weight, 0.0)
    nn.init.constant_(net.bias, 50.0)

    def forward():
        p = torch.sigmoid(net(X))
        rest = 1 - p
        if mended:
            rest = rest.clamp(min=1e-6)
        return (rest**0.5).mean()  # born

    return Program(net, forward)


@birth("inf", "loss", "log", None, "log of 0")
def boxes_that_do_not_overlap(mended: bool) -> Program:
    """-log(IoU) of two boxes apart."""
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 1.0]))

    def forward():
        left, right = net(X).unbind(-1)
        both = (right.clamp(max=3.0) - left.clamp(min=2.0)).clamp(min=0)
        iou = both / (right - left + 1 - both)
        return (1 - iou).mean() if mended else -torch.log(iou).mean()  # born

    return Program(net, forward)


@birth("inf", "loss", "div", None, "division by zero")
def error_relative_to_a_constant_target(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    y = torch.full((3, 1), 2.0)

    def forward():
        spread = y.var() + (1e-6 if mended else 0.0)
        return F.mse_loss(net(X), y) / spread  # born

    return Program(net, forward)


@birth("inf", "loss", "exp", None, "exp of ")
def importance_ratio_of_an_old_policy(mended: bool) -> Program:
    """PPO: exp(new - old) with an action that the old policy all but excluded."""
    net = nn.Linear(4, 3)
    old = torch.tensor([-1.0, -200.0, -1.0])

    def forward():
        new = net(X).log_softmax(-1)[torch.arange(3), Y]
        gap = new - old
        ratio = torch.exp(gap.clamp(max=10) if mended else gap)  # born
        return -(ratio * torch.tensor([1.0, 1.0, -1.0])).mean()

    return Program(net, forward)


@birth("nan", "forward", "div", "pool", "0 / 0")
def mean_pooling_of_an_empty_sentence(mended: bool) -> Program:
    class Pool(nn.Module):
        def forward(self, x, keep):
            length = keep.sum(-1, keepdim=True)
            if mended:
                length = length.clamp(min=1)
            return (x * keep[..., None]).sum(1) / length  # born

    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "pool": Pool(), "fc": nn.Linear(4, 2)})
    tokens = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])

    def forward():
        h = net["pool"](net["embed"](tokens), (tokens > 0).float())
        return F.cross_entropy(net["fc"](h), Y)

    return Program(net, forward)


@birth("nan", "forward", "div", "tower", "0 / 0", call=1)
def second_tower_of_a_siamese_net(mended: bool) -> Program:
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            x = self.fc(x)
            size = (x * x).sum(-1, keepdim=True)
            if mended:
                size = size + 1e-6
            return x / size  # born

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = Tower()

        def forward(self, a, b):
            return (self.tower(a) - self.tower(b)).pow(2).sum()

    net = Siamese()
    other = X.clone()
    other[2] = 0
    return Program(net, lambda: net(X, other))


@birth("nan", "parameter", None, "backbone.weight", "of 16 values", None)
def a_frozen_backbone_that_is_broken(mended: bool) -> Program:
    net = nn.Sequential()
    net.add_module("backbone", nn.Linear(4, 4))
    net.add_module("head", nn.Linear(4, 2))
    net.backbone.requires_grad_(False)
    if not mended:
        net.backbone.weight.data[1, 1] = float("nan")
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@birth("nan", "step", "RMSprop.step", "dead", "0 / 0")
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
        optimizer.step()  # born

    return Program(net, lambda: F.cross_entropy(net(X), Y), step)


@birth("nan", "step", "clip_grad_norm_", None, "0 · inf")
def clipping_by_a_norm_that_overflows(mended: bool) -> Program:
    """The norm of huge gradients is inf, the factor 0: but one gradient is inf itself."""
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        net.bias.grad[0] = 1.0 if mended else INF
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # born
        optimizer.step()

    return Program(net, lambda: F.cross_entropy(net(X), Y), step)


@birth("nan", "forward", "log", "flow", "log of -")
def log_determinant_of_a_negative_scale(mended: bool) -> Program:
    """A normalising flow: log of a scale that has changed its sign."""

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([0.5, 1.0, -0.01, 2.0]))

        def forward(self, x):
            scale = self.scale.abs() if mended else self.scale
            return x * self.scale, torch.log(scale).sum()  # born

    net = nn.ModuleDict({"flow": Flow()})

    def forward():
        z, logdet = net["flow"](X)
        return 0.5 * z.pow(2).sum(-1).mean() - logdet

    return Program(net, forward)


@birth("nan", "forward", "sqrt", "scheduler", "sqrt of -")
def noise_schedule_past_its_end(mended: bool) -> Program:
    """Diffusion: sqrt(1 - abar) with abar above 1 by an index too far."""

    class Scheduler(nn.Module):
        def forward(self, x, noise, abar):
            if mended:
                abar = abar.clamp(0, 1)
            return abar.sqrt() * x + (1 - abar).sqrt() * noise  # born

    net = nn.ModuleDict({"scheduler": Scheduler(), "unet": nn.Linear(4, 4)})
    abar = torch.tensor([[0.9], [0.5], [1.0001]])

    def forward():
        noise = torch.ones(3, 4)
        return F.mse_loss(net["unet"](net["scheduler"](X, noise, abar)), noise)

    return Program(net, forward)
