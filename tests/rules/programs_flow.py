"""Broken programs for GS101–GS104: gradients that vanish, explode, are zero, or move nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program, sgd

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 4


def classes(model, **options):
    return Program(model, X, F.cross_entropy, Y, options)


@program("GS101", "*", severity="warning")
def deep_sigmoid_stack(mended):
    """Twelve sigmoid layers: each passes on a quarter at best."""
    act = nn.ReLU if mended else nn.Sigmoid
    layers = [nn.Sequential(nn.Linear(16, 16), act()) for _ in range(12)]
    for layer in layers if mended else ():
        nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu")
    return classes(nn.Sequential(*layers, nn.Linear(16, 4)))


@program("GS101", "net.*", severity="warning")
def weights_of_a_thousandth(mended):
    """`nn.init.normal_(w, 0, 0.001)` in every layer, as in old AlexNet recipes."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
            self.head = nn.Linear(16, 4)
            for layer in self.net:
                if mended:
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                else:
                    nn.init.normal_(layer.weight, 0, 0.001)

        def forward(self, x):
            for layer in self.net:
                x = F.relu(layer(x))
            return self.head(x)

    return classes(Net())


@program("GS101", "encoder*", severity="warning")
def a_factor_in_the_middle(mended):
    """A learning-rate trick that scales an activation away: what lies before it starves."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32))
            self.decoder = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))

        def forward(self, x):
            z = self.encoder(x)
            return self.decoder(z if mended else z * 1e-6)

    return classes(Net())


@program("GS102", "*", severity="warning")
def weights_of_one(mended):
    """`nn.init.normal_(w)` without a standard deviation: each layer multiplies by √fan."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(10)]
    for layer in layers:
        if mended:
            nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu")
        else:
            nn.init.normal_(layer[0].weight)
    model = nn.Sequential(nn.Linear(16, 64), *layers, nn.Linear(64, 4))
    return classes(model)


@program("GS102", "*", severity="warning")
def learning_rate_of_a_regression(mended):
    """A linear regression beyond 2/λ: each step's gradient outgrows the last."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 1))
    y = X.sum(1, keepdim=True)
    options = {"optimizer": sgd(0.01 if mended else 0.5), "steps": 4}
    return Program(model, X, F.mse_loss, y, options)


@program("GS102", "*", severity="warning")
def recurrence_that_grows(mended):
    """An unrolled linear recurrence with a spectral radius over one."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.step = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
            self.head = nn.Linear(16, 4)
            nn.init.orthogonal_(self.step.weight, 1.0 if mended else 1.6)

        def forward(self, x):
            h = self.inp(x)
            for _ in range(30):
                h = self.step(h)
            return self.head(h)

    return classes(Net())


class Recurrent(nn.Module):
    """A recurrent layer, whose steps are one call, and a head on its last state."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


SEQUENCES = torch.randn(32, 40, 8, generator=torch.Generator().manual_seed(9))


@program("GS102", "rnn", severity="warning")
def recurrent_weight_of_standard_normals(mended):
    """`for p in rnn.parameters(): nn.init.normal_(p)`: the recurrent weight's radius is four."""
    model = Recurrent(nn.RNN(8, 16, batch_first=True))
    for p in () if mended else model.rnn.parameters():
        nn.init.normal_(p)
    return Program(model, SEQUENCES, F.cross_entropy, Y)


@program("GS102", "rnn", severity="warning")
def recurrent_relu_above_one(mended):
    """An IRNN whose recurrent weight is a multiple of the identity: 1.6 to the fortieth."""
    model = Recurrent(nn.RNN(8, 16, batch_first=True, nonlinearity="relu"))
    with torch.no_grad():
        model.rnn.weight_hh_l0.copy_(torch.eye(16) * (1.0 if mended else 1.6))
    return Program(model, SEQUENCES, F.cross_entropy, Y)


@program("GS102", "rnn", severity="warning")
def gates_of_a_gru_far_too_large(mended):
    """Weights that a bad step has multiplied by twenty, in a GRU of two directions."""
    model = Recurrent(nn.GRU(8, 8, batch_first=True, bidirectional=True))
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(1 if mended else 20)
    return Program(model, SEQUENCES, F.cross_entropy, Y)


@program("GS103", "net.1", severity="error", cause="dead-activation")
def relu_killed_by_its_bias(mended):
    """A step too large threw the biases far below zero: no unit fires again."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
            nn.init.constant_(self.net[0].bias, 0.0 if mended else -100.0)

        def forward(self, x):
            return self.net(x)

    return classes(Net())


@program("GS103", "disc", severity="error", cause="saturated")
def saturating_generator_loss(mended):
    """log(1 - D(G(z))) where D is sure of itself: its sigmoid is flat, and G learns nothing.

    Goodfellow et al. 2014, section 3, on the loss that does not saturate.
    """

    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.gen, self.disc = nn.Linear(16, 8), nn.Linear(8, 1)
            nn.init.constant_(self.disc.bias, -120.0)

        def forward(self, z):
            return self.disc(self.gen(z))

    def loss(logit):
        if mended:
            return F.softplus(-logit).mean()
        return torch.log(1 - torch.sigmoid(logit) + 1e-12).mean()

    model = Gan()
    model.disc.requires_grad_(False)
    return Program(model, X, loss)


@program("GS103", "adapter.*", severity="error")
def adapter_zero_on_both_sides(mended):
    """LoRA with A and B both zero: neither ever moves. B alone at zero is how it is meant."""

    class Lora(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(16, 4).requires_grad_(False)
            self.adapter = nn.ParameterDict(
                {"A": torch.randn(16, 2) if mended else torch.zeros(16, 2), "B": torch.zeros(2, 4)}
            )

        def forward(self, x):
            return self.base(x) + x @ self.adapter["A"] @ self.adapter["B"]

    return classes(Lora())


@program("GS103", "scale", severity="info", cause="zero-weight")
def residual_scale_of_zero(mended):
    """ReZero's α = 0: the block has no gradient until α has moved. Worth a word, no more."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
            self.scale = nn.Parameter(torch.full((1,), 0.1 if mended else 0.0))

        def forward(self, x):
            return self.head(x + self.scale * F.relu(self.block(x)))

    return classes(Net())


@program("GS103", "*", severity="warning", cause="masked")
def every_token_is_padding(mended):
    """A loss mask whose sense is turned round: what should count is what is left out."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def loss(logits, y):
        each = F.cross_entropy(logits, y, reduction="none")
        mask = torch.ones(len(y)) if mended else torch.zeros(len(y))
        return (each * mask).mean()

    return Program(model, X, loss, Y)


@program("GS104", "*", severity="warning")
def learning_rate_of_ten(mended):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return classes(model, optimizer=sgd(0.1 if mended else 10.0))


@program("GS104", "*", severity="warning")
def learning_rate_with_a_slip(mended):
    """Adam's usual 1e-3 typed as 1e-8."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    lr = 1e-3 if mended else 1e-8
    return classes(model, optimizer=lambda ps: torch.optim.Adam(ps, lr=lr))


@program("GS104", "0*", severity="warning")
def group_without_a_learning_rate(mended):
    """A schedule left a group at 0: it has a gradient and an optimizer, and does not move."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def make(_):
        body = {"params": list(model[0].parameters()), "lr": 0.1 if mended else 0.0}
        return torch.optim.SGD([body, {"params": list(model[2].parameters())}], lr=0.1)

    return classes(model, optimizer=make)
