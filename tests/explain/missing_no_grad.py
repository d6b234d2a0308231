"""Programs that run with gradients disabled, and programs that choose without a gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing_cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("no-grad", "backbone.0")
def backbone_left_in_no_grad(mended: bool) -> Program:
    """Fine-tuning: the block that froze the backbone stayed when it was to be trained."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):
                h = self.backbone(x)  # cut
            return self.head(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "features")
def decorated_feature_extractor(mended: bool) -> Program:
    def maybe(function):
        return function if mended else torch.no_grad()(function)

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        @maybe
        def forward(self, x):
            return torch.tanh(x @ self.w)  # cut

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head = Features(), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.features(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "net.0")
def whole_step_in_inference_mode(mended: bool) -> Program:
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 2))

        def forward(self, x):
            if mended:
                return self.net(x)
            with torch.inference_mode():
                return self.net(x)  # cut

    net = Wrapper()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "")
def positional_table_in_no_grad(mended: bool) -> Program:
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(3, 4))
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):
                table = self.position / self.position.norm()  # cut
            return self.out(x + table)

    net = Embed()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "target")
def target_network_still_trainable(mended: bool) -> Program:
    """DQN: the target network runs under no_grad, but its parameters are in the optimizer."""
    nets = nn.ModuleDict({"online": nn.Linear(4, 2), "target": nn.Linear(4, 2)})
    if mended:
        nets["target"].requires_grad_(False)

    def step():
        q = nets["online"](X).gather(1, Y[:, None])
        with torch.no_grad():
            best = nets["target"](X).max(1).values  # cut
        return F.smooth_l1_loss(q[:, 0], 1 + 0.9 * best)

    return nets, step


@case("no-grad", "momentum")
def moco_momentum_encoder(mended: bool) -> Program:
    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.momentum = nn.Linear(4, 3), nn.Linear(4, 3)
            if mended:
                self.momentum.requires_grad_(False)

        @torch.no_grad()
        def update(self):
            for q, k in zip(self.query.parameters(), self.momentum.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1

        def forward(self, x):
            q = self.query(x)
            with torch.no_grad():
                self.update()
                k = self.momentum(x)  # cut
            return q @ k.T

    net = MoCo()
    return net, lambda: F.cross_entropy(net(X), torch.arange(3))


@case("no-grad", "blocks.1")
def moe_expert_in_no_grad(mended: bool) -> Program:
    class Block(nn.Module):
        def __init__(self, quiet):
            super().__init__()
            self.quiet = quiet
            self.fc = nn.Parameter(torch.eye(4))

        def forward(self, x):
            torch.set_grad_enabled(not self.quiet or mended)
            y = x @ self.fc  # cut
            torch.set_grad_enabled(True)
            return y

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.blocks = nn.ModuleList([Block(False), Block(True)])

        def forward(self, x):
            g = self.gate(x).softmax(1)
            return sum(g[:, i : i + 1] * b(x) for i, b in enumerate(self.blocks))

    net = MoE()
    return net, lambda: net(X).square().mean()


@case("no-grad", "body.0")
def reentrant_checkpoint_of_a_frozen_stem(mended: bool) -> Program:
    """transformers #21381, open_clip #573: no input of the checkpoint requires a gradient."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4).requires_grad_(False)
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = checkpoint(self.body, self.stem(x), use_reentrant=not mended)  # cut
            return self.head(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad")
def sample_without_reparametrisation(mended: bool) -> Program:
    """VAE: `sample()` in the place of `rsample()`."""
    net = nn.ModuleDict({"enc": nn.Linear(4, 4), "dec": nn.Linear(2, 4)})

    def step():
        mean, scale = net["enc"](X).chunk(2, dim=1)
        q = torch.distributions.Normal(mean, scale.exp())
        z = q.rsample() if mended else q.sample()  # cut
        return F.mse_loss(net["dec"](z), X)

    return net, step


@case("non-differentiable", "router")
def moe_argmax_routing(mended: bool) -> Program:
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(4, 2)

        def forward(self, x):
            p = self.score(x).softmax(1)
            return p if mended else F.one_hot(p.argmax(1), 2).float()  # cut

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Router()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x):
            g = self.router(x)
            return sum(g[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))

    net = MoE()
    return net, lambda: net(X).square().mean()


@case("non-differentiable")
def accuracy_as_loss(mended: bool) -> Program:
    net = nn.Linear(4, 2)

    def step():
        out = net(X)
        if mended:
            return F.cross_entropy(out, Y)
        correct = out.argmax(1) == Y  # cut
        return 1 - correct.float().mean()

    return net, step


@case("non-differentiable")
def threshold_mask_as_loss(mended: bool) -> Program:
    """Segmentation: a Dice loss on the thresholded mask."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 1), nn.Sigmoid())
    image, truth = torch.rand(1, 1, 5, 5), torch.ones(1, 1, 5, 5)

    def step():
        p = net(image)
        if not mended:
            p = (p > 0.5).float()  # cut
        return 1 - 2 * (p * truth).sum() / (p + truth).sum()

    return net, step


@case("non-differentiable", "")
def gumbel_argmax(mended: bool) -> Program:
    class Discrete(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits, self.table = nn.Linear(4, 5), nn.Embedding(5, 2)

        def forward(self, x):
            noise = -torch.log(-torch.log(torch.rand(3, 5)))
            scores = self.logits(x) + noise
            if mended:
                return F.gumbel_softmax(scores, hard=True) @ self.table.weight
            index = scores.argmax(-1)  # cut
            return self.table(index)

    net = Discrete()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable", "")
def vq_without_straight_through(mended: bool) -> Program:
    """pytorch-vqvae #8: the quantised vectors go on alone."""

    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
            self.codebook = nn.Embedding(5, 2)

        def forward(self, x):
            z = self.encoder(x)
            d = (z[:, None] - self.codebook.weight).square().sum(-1)
            q = self.codebook(d.min(1)[1])  # cut
            return self.decoder(q + z - z.detach() if mended else q)

    net = VQ()
    return net, lambda: F.mse_loss(net(X), X)


@case("non-differentiable", "")
def quantised_by_int_cast(mended: bool) -> Program:
    class Quant(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.a(x) * 16
            q = h.int().float()  # cut
            return self.b(h + (q - h).detach() if mended else q)

    net = Quant()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable", "pool")
def top_k_pooling_by_index(mended: bool) -> Program:
    """Graph pooling: the score picks the nodes but never multiplies them."""

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(4, 1)

        def forward(self, x):
            values, index = self.score(x).squeeze(1).topk(2)  # cut
            return x[index] * values[:, None].sigmoid() if mended else x[index]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.out = Pool(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.pool(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y[:2])


@case("non-differentiable")
def policy_by_sampling(mended: bool) -> Program:
    net = nn.ModuleDict({"policy": nn.Linear(4, 3), "value": nn.Embedding(3, 1)})

    def step():
        probabilities = net["policy"](X).softmax(1)
        action = torch.multinomial(probabilities, 1)  # cut
        reward = net["value"](action).mean()
        if mended:
            return reward - probabilities.gather(1, action).log().mean()
        return reward

    return net, step


@case("non-differentiable")
def ranking_by_argsort(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    relevance = torch.tensor([1.0, 0.0, 0.5])

    def step():
        score = net(X).squeeze(1)
        order = score.argsort(descending=True)  # cut
        gain = (relevance[order] / torch.arange(2.0, 5.0)).sum()
        if mended:
            return -(score.log_softmax(0) * relevance).sum()
        return (1 - gain).requires_grad_()

    return net, step


@case("non-differentiable", "")
def function_marks_its_output(mended: bool) -> Program:
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.where(x > 0, 1.0, -1.0)  # cut
            if not mended:
                ctx.mark_non_differentiable(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g

    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(Sign.apply(self.a(x)))

    net = Binary()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable", "")
def function_returns_none(mended: bool) -> Program:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w  # cut

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, (g * x).sum(0) if mended else None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return Scale.apply(self.a(x), self.scale)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable")
def metric_in_loss(mended: bool) -> Program:
    """F1 from counts; the counts are comparisons."""
    net = nn.Linear(4, 1)

    def step():
        p = net(X).squeeze(1).sigmoid()
        if not mended:
            p = p.ge(0.5)  # cut
        hit = (p * Y).sum()
        return 1 - 2 * hit / (p.sum() + Y.sum()).float()

    return net, step


@case("detached", "noisy", mark="# cut b", name="noisy.sigma")
@case("non-differentiable", "noisy", name="noisy.keep.weight")
def two_cuts_in_one_module(mended: bool) -> Program:
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.keep = nn.Linear(4, 4)
            self.sigma = nn.Parameter(torch.ones(4))

        def forward(self, x):
            k = self.keep(x)
            gate = k.sigmoid() if mended else (k > 0).float()  # cut
            s = self.sigma if mended else self.sigma.detach()  # cut b
            return x * gate + s

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.noisy, self.out = Noisy(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.noisy(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)
