"""Programs whose parameters are never used, or are used for what never reaches the loss."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from explain.missing_cases import Program, case

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


@case("not-in-loss", "aux")
def multi_task_head_without_loss(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.main, self.aux = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 1)

        def forward(self, x):
            h = self.body(x).relu()
            return self.main(h), self.aux(h)  # cut

    net = Net()

    def step():
        main, aux = net(X)
        loss = F.cross_entropy(main, Y)
        return loss + aux.square().mean() if mended else loss

    return net, step


@case("not-in-loss", "")
def auxiliary_loss_logged_only(mended: bool) -> Program:
    """The auxiliary output is printed with `.item()`, but added to nothing."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.aux = nn.Linear(4, 2), nn.Linear(4, 1)

        def forward(self, x):
            return {"logits": self.main(x), "aux": self.aux(x).mean()}  # cut

    class Log(list):
        pass

    net, log = Net(), Log()

    class Aux(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x * self.w).sum(1)

    net.aux = Aux()

    def step():
        out = net(X)
        loss = F.cross_entropy(out["logits"], Y) * torch.tensor(2.0)
        if mended:
            loss = loss + out["aux"]
        log.append(loss.item())
        return loss

    return net, step


@case("not-in-loss", "decoder")
def autoencoder_loss_on_the_code(mended: bool) -> Program:
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            z = self.encoder(x)
            return z, self.decoder(z)  # cut

    net = Auto()

    def step():
        z, out = net(X)
        return F.mse_loss(out, X) if mended else z.square().mean()

    return net, step


@case("not-in-loss", "attention")
def attention_output_overwritten(mended: bool) -> Program:
    """A residual line that forgets the branch."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            a, _ = self.attention(x, x, x)  # cut
            if mended:
                x = x + a
            return x + self.fc(x)

    net = Block()
    return net, lambda: net(X[None]).square().mean()


@case("not-in-loss", "")
def lstm_last_state_of_the_wrong_direction(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.forth, self.back = nn.LSTM(4, 3), nn.LSTM(4, 3)
            self.out = nn.Linear(3, 2)

        def forward(self, x):
            h = self.forth(x)[0][-1]
            g = self.back(x.flip(0))[0][-1]  # cut
            return self.out(h + g if mended else h)

    net = Net()
    return net, lambda: net(X[:, None]).square().sum()


@case("not-in-loss", "D")
def gan_discriminator_in_generator_only_step(mended: bool) -> Program:
    class D(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x @ self.w  # cut

    nets = nn.ModuleDict({"G": nn.Linear(4, 4), "D": D()})

    def step():
        fake = nets["G"](X)
        score = nets["D"](fake)
        return F.mse_loss(fake, X) + (score.mean() if mended else 0)

    return nets, step


@case("not-in-loss")
def loss_term_overwritten(mended: bool) -> Program:
    net = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 1)})

    def step():
        loss = net["b"](X).abs().mean()  # cut
        other = F.cross_entropy(net["a"](X), Y)
        return loss + other if mended else other

    return net, step


@case("not-in-loss", "head")
def metric_of_an_unused_head(mended: bool) -> Program:
    """The head's prediction goes to an accuracy by argmax; its scores go nowhere else."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.body(x)
            return h, self.head(h)  # cut

    net = Net()

    def step():
        h, logits = net(X)
        accuracy = (logits.argmax(1) == Y).float().mean().item()
        assert 0 <= accuracy <= 1
        loss = h.square().mean()
        return loss + F.cross_entropy(logits, Y) if mended else loss

    return net, step


@case("not-in-loss", "proj")
def checkpointed_branch_not_added(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.proj = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = self.a(x)
            p = checkpoint(self.proj, h, use_reentrant=False)  # cut
            return h + p if mended else h

    net = Net()
    return net, lambda: net(X).square().mean()


@case("detached", "")
def parametrised_weight_detached(mended: bool) -> Program:
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).T

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.out = nn.Linear(4, 2)
            parametrize.register_parametrization(self.fc, "weight", Symmetric())

        def forward(self, x):
            w = self.fc.weight
            if not mended:
                w = w.clone().detach()  # cut
            return self.out(F.linear(x, w, self.fc.bias))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-in-loss", "tied.back")
def tied_embedding_of_an_unused_branch(mended: bool) -> Program:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.back = nn.Linear(4, 5, bias=False)
            self.back.weight = self.table.weight

        def forward(self, ids):
            return self.back(self.table(ids))  # cut

    nets = nn.ModuleDict({"tied": Tied(), "main": nn.Linear(4, 2)})

    def step():
        logits = nets["tied"](Y)
        loss = F.cross_entropy(nets["main"](X), Y)
        return loss + F.cross_entropy(logits, Y) if mended else loss

    return nets, step


@case("not-in-loss", "aux")
def vmapped_head_unused(mended: bool) -> Program:
    class Aux(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return torch.vmap(lambda row: row * self.w)(x)  # cut

    nets = nn.ModuleDict({"main": nn.Linear(4, 2), "aux": Aux()})

    def step():
        extra = nets["aux"](X)
        loss = F.cross_entropy(nets["main"](X), Y)
        return loss + extra.mean() if mended else loss

    return nets, step


@case("not-in-loss", "encoder.layers.0.norm2")
def transformer_layer_output_dropped(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            y = self.encoder(x)  # cut
            return self.out(y if mended else x)

    net = Net()
    return net, lambda: net(X[None]).square().mean()


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
