"""A second batch, written with its answers when the first had been met."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing_cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("no-grad", "encoder")
def decorator_on_forward(mended: bool) -> Program:
    class Quiet(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.eye(4))

        @torch.no_grad()
        def forward(self, x):
            return x @ self.w  # cut

    class Loud(Quiet):
        def forward(self, x):
            return x @ self.w

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.out = Loud() if mended else Quiet(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.encoder(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached")
def loss_by_numpy(mended: bool) -> Program:
    net = nn.Linear(4, 4)

    def step():
        out = net(X)
        if mended:
            return F.mse_loss(out, X)
        error = np.mean((out.detach().numpy() - X.numpy()) ** 2)  # cut
        return torch.tensor(error, requires_grad=True)

    return net, step


@case("detached")
def variable_of_data(mended: bool) -> Program:
    """`Variable(x.data, requires_grad=True)`, from before 0.4."""
    nets = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})

    def step():
        h = nets["a"](X)
        if not mended:
            h = torch.autograd.Variable(h.data, requires_grad=True)  # cut
        return F.cross_entropy(nets["b"](h), Y)

    return nets, step


@case("detached")
def sum_of_items(mended: bool) -> Program:
    net = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})

    def step():
        losses = [F.cross_entropy(net[k](X), Y) for k in ("a", "b")]
        if mended:
            return sum(losses)
        return torch.tensor(sum(x.item() for x in losses) / 2, requires_grad=True)  # cut

    return net, step


@case("detached")
def gradient_penalty_without_graph(mended: bool) -> Program:
    """WGAN-GP: the penalty's gradient is taken without `create_graph`."""
    nets = nn.ModuleDict({"D": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1, False))})

    def step():
        x = X.clone().requires_grad_()
        score = nets["D"](x).sum()
        (g,) = torch.autograd.grad(score, x, create_graph=mended)  # cut
        return (g.norm(dim=1) - 1).square().mean() + 0 * x.sum()

    return nets, step


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


@case("detached", "")
def parameter_made_of_a_result(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.base = nn.Parameter(torch.ones(2, 4)), torch.randn(2, 4)

        def forward(self, x):
            weight = self.base * self.scale
            if not mended:
                weight = nn.Parameter(weight)  # cut
            bias = torch.zeros(2)
            return F.linear(x, weight, bias)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def detach_after_a_reentrant_checkpoint(mended: bool) -> Program:
    """The checkpoint's first pass runs without gradients, and that is not the cause."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = checkpoint(self.body, self.stem(x), use_reentrant=True)
            return self.head(h if mended else h.detach())  # cut

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


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


@case("no-grad", "encoder.layers.0.self_attn")
def frozen_by_eval_and_no_grad(mended: bool) -> Program:
    """A Transformer encoder on its fast path: one fused operation for the whole layer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):
                h = self.encoder(x)  # cut
            return self.out(h)

    net = Net()
    return net, lambda: net(X[None]).square().mean()


@case("no-grad", "rnn")
def recurrent_warm_up_in_no_grad(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):
                _, h = self.rnn(x)  # cut
            return self.out(h[0])

    net = Net()
    return net, lambda: net(X[:, None]).square().sum()


@case("detached", "")
def weight_norm_by_data(mended: bool) -> Program:
    """Weight normalisation by hand: the direction is renewed through `.data`."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.g = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.ones(2, 1))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            w = self.g * self.v / self.v.norm(dim=1, keepdim=True)
            if mended:
                return F.linear(x, w, self.fc.bias) + self.fc(x)
            self.fc.weight.data.copy_(w.detach())  # cut
            return self.fc(x)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "quant")
def sign_without_straight_through(mended: bool) -> Program:
    class Quant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            b = self.w.sign().detach()  # cut
            return x @ (self.w + b - self.w.detach() if mended else b)

    nets = nn.Sequential()
    nets.add_module("quant", Quant())
    nets.add_module("out", nn.Linear(4, 2))
    return nets, lambda: F.cross_entropy(nets(X), Y)


@case("not-in-loss", "heads.b")
def task_sampled_away(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})

        def forward(self, x):
            h = self.body(x)
            return {k: head(h) for k, head in self.heads.items()}  # cut

    net = Net()

    def step():
        out = net(X)
        tasks = ("a", "b") if mended else ("a",)
        return sum(F.cross_entropy(out[k], Y) for k in tasks)

    return net, step


@case("no-grad", "proj")
def autocast_and_no_grad(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(mended):
                h = self.proj(x)  # cut
            return self.out(h.float())

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def labels_from_own_prediction(mended: bool) -> Program:
    """BYOL without its predictor: both sides detached."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.out = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x):
            p = self.f(x)
            if mended:
                return p, self.out(p)
            return p.detach(), self.out(p.detach())  # cut

    net = Net()

    def step():
        a, b = net(X)
        return F.mse_loss(b, a)

    return net, step


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
