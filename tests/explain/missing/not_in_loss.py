"""Programs whose parameters are used for what the loss does not use it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing.cases import Program, Two, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


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


@case("not-in-loss", "film")
def modulation_computed_and_dropped(mended: bool) -> Program:
    class Film(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Linear(4, 8)

        def forward(self, x, c):
            scale, shift = self.make(c).chunk(2, dim=1)  # cut
            return x * scale + shift if mended else x

    nets = nn.ModuleDict({"film": Film(), "out": nn.Linear(4, 2)})
    return nets, lambda: F.cross_entropy(nets["out"](nets["film"](X, X)), Y)


@case("not-in-loss", "", name="pos")
def positions_added_to_a_copy(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos, self.out = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 2)

        def forward(self, x):
            y = x.add(self.pos)  # cut
            return self.out(y if mended else x)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-in-loss", name="a.weight")
def an_int_that_is_computed_with(mended: bool) -> Program:
    """Python's own arithmetic on an int leaves no trace: no claim that it never gets there."""
    net, x, y = Two(), X.clone(), Y.clone()  # of the program's own, as in a script

    def step():
        scale = (net.a(x) ** 2).sum()  # cut
        scale = scale * 1e-2 if mended else int(scale) / 100
        return F.cross_entropy(net.out(x) * scale, y)

    return net, step


@case("not-in-loss", name="a.weight")
def a_branch(mended: bool) -> Program:
    net = Two()

    def step():
        gate = net.a(X).sum()  # cut
        if mended:
            return F.cross_entropy(net.out(X) * torch.sigmoid(gate), Y)
        return F.cross_entropy(net.out(X) * (2 if gate > 0 else 1), Y)

    return net, step


@case("not-in-loss", "")
def policy_of_a_distribution(mended: bool) -> Program:
    """The distribution checks its arguments, which is no branch of the program's."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.policy, self.value = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 1)

        def forward(self, x):
            h = self.body(x)
            actions = torch.distributions.Categorical(logits=self.policy(h))  # cut
            return actions, self.value(h)

    net = Net()

    def step():
        actions, value = net(X)
        loss = value.square().mean()
        return loss - actions.log_prob(Y).mean() if mended else loss

    return net, step
