"""Programs that choose without a gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing.cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


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


@case("non-differentiable")
def greedy_decoding_by_int(mended: bool) -> Program:
    nets = nn.ModuleDict(
        {"enc": nn.Linear(4, 5), "emb": nn.Embedding(5, 4), "dec": nn.Linear(4, 2)}
    )

    def step():
        scores = nets["enc"](X)
        if mended:
            return F.cross_entropy(nets["dec"](scores.softmax(1) @ nets["emb"].weight), Y)
        tokens = scores.argmax(dim=-1)  # cut
        ids = torch.tensor([int(t) for t in tokens])
        return F.cross_entropy(nets["dec"](nets["emb"](ids)), Y)

    return nets, step


@case("non-differentiable", "body")
def choice_inside_a_reentrant_checkpoint(mended: bool) -> Program:
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            g = self.gate(x)
            if not mended:
                g = (g > 0).float()  # cut
            return self.fc(x) * g

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body, self.head = nn.Linear(4, 4), Body(), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(checkpoint(self.body, self.stem(x), use_reentrant=True))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable", "")
def bins_by_bucketize(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.table = nn.Linear(4, 1), nn.Embedding(4, 2)
            self.edges = torch.tensor([-0.5, 0.0, 0.5])

        def forward(self, x):
            s = self.score(x)
            e = self.table(torch.bucketize(s, self.edges)[:, 0])  # cut
            return e * s.sigmoid() if mended else e

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("non-differentiable", "cell", name="cell.alpha")
def architecture_by_argmax(mended: bool) -> Program:
    """DARTS: the strongest operation alone is run."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = nn.Parameter(torch.tensor([0.1, 0.3]))
            self.ops = nn.ModuleList([nn.Identity(), nn.Tanh()])

        def forward(self, x):
            if mended:
                return sum(w * op(x) for w, op in zip(self.alpha.softmax(0), self.ops, strict=True))
            return self.ops[self.alpha.argmax()](x)  # cut

    nets = nn.Sequential()
    nets.add_module("cell", Cell())
    nets.add_module("out", nn.Linear(4, 2))
    return nets, lambda: F.cross_entropy(nets(X), Y)


@case("non-differentiable")
def hinge_on_counts(mended: bool) -> Program:
    net = nn.Linear(4, 1)

    def step():
        score = net(X)[:, 0]
        if mended:
            return F.relu(0.5 - score).sum()
        wrong = torch.count_nonzero(score < 0.5)  # cut
        return (wrong * torch.ones((), requires_grad=True)).float()

    return net, step


@case("non-differentiable", "")
def nearest_neighbours_then_gather(mended: bool) -> Program:
    """Point clouds: neighbours by sorted distance; the embedding picks them and is not used."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            e = self.embed(x)
            near = torch.cdist(e, e).sort(dim=1)[1][:, :2]  # cut
            h = x[near].mean(1)
            return self.out(h + e.mean() if mended else h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)
