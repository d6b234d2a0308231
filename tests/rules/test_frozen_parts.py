"""GS403 and GS103 on fine-tuning as it is meant: what needs no action is worth knowing at most."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope

Y = torch.arange(8) % 4


def said(model, x, code, loss=F.cross_entropy, target=Y):
    """Severity, cause, name and message of what one rule finds."""
    found = gradscope.check(model, x, loss=loss, target=target).findings
    return [(f.severity, f.cause, f.name, f.message) for f in found if f.code == code]


class Lora(nn.Module):
    """A frozen linear layer with two small factors beside it, the second of zeros."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(2, base.in_features) * 0.02)
        self.B = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t()


class Adapted(nn.Module):
    """A frozen encoder, with adapters in its first so many layers, and a head."""

    def __init__(self, adapters):
        super().__init__()
        self.embed, self.drop = nn.Linear(16, 32), nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(4)
        )
        self.requires_grad_(False)
        self.head = nn.Linear(32, 4)
        for layer in self.layers[:adapters]:
            layer.linear1 = Lora(layer.linear1)

    def forward(self, x):
        x = self.drop(self.embed(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@pytest.mark.slow
def test_adapters_are_one_remark_each():
    model, x = Adapted(4), torch.randn(8, 5, 16)
    ((severity, cause, name, message),) = said(model, x, "GS403")
    assert (severity, cause, name) == ("info", "dropout", "layers.1.self_attn")
    assert message.startswith("4 dropouts of frozen layers act (p = 0.1 here)")
    ((severity, cause, name, message),) = said(model, x, "GS103")
    assert (severity, cause, name) == ("info", "zero-weight", "layers.0.linear1.B")
    assert "and 3 places more like it" in message


def test_frozen_blocks_without_adapters_are_one_warning():
    ((severity, cause, name, message),) = said(Adapted(0), torch.randn(8, 5, 16), "GS403")
    assert (severity, cause, name) == ("warning", "dropout", "layers.0.self_attn")
    assert "dropout is active in frozen `layers`" in message


def block(width):
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())


def test_statistics_between_what_trains_are_a_warning_for_all_blocks():
    model = nn.Sequential(*(nn.Sequential(block(16), nn.Linear(16, 16)) for _ in range(3)))
    for one in model:
        one[0].requires_grad_(False)
    ((severity, cause, name, message),) = said(
        model, torch.randn(8, 16), "GS403", lambda out: out.square().mean(), None
    )
    # The first block runs before all that trains, the others do not: all drift alike.
    assert (severity, cause, name) == ("warning", "batch-norm", "0.0.1")
    assert "and 2 parts more" in message
    assert "(and 2 norms more)" in message


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.d = nn.Sequential(block(16), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, z):
        return self.d(self.g(z))


def test_a_frozen_discriminator_in_its_generators_step():
    model = Gan()
    model.d.requires_grad_(False)
    found = said(model, torch.randn(8, 8), "GS403", lambda out: F.softplus(-out).mean(), None)
    assert [f[:3] for f in found] == [
        ("info", "batch-norm", "d.0.1"),
        ("info", "dropout", "d.1"),
    ]


def test_a_frozen_generator_in_its_discriminators_step():
    model = Gan()
    model.g[1] = nn.BatchNorm1d(16)
    model.g.requires_grad_(False)
    found = said(model, torch.randn(8, 8), "GS403", lambda out: F.softplus(-out).mean(), None)
    assert [f[:3] for f in found] == [("warning", "batch-norm", "g.1")]


class Discriminating(Gan):
    """The discriminator's step: it reads real samples first, then what the generator made."""

    def __init__(self, detached):
        super().__init__()
        self.g[1] = nn.BatchNorm1d(16)
        self.g.requires_grad_(False)
        self.detached = detached

    def forward(self, z):
        real = self.d(torch.randn(len(z), 16))
        made = self.g(z)
        return real, self.d(made.detach() if self.detached else made)


@pytest.mark.parametrize("detached", [False, True])
def test_a_frozen_generator_behind_the_first_call_of_its_discriminator(detached):
    def loss(out):
        real, made = out
        return F.softplus(-real).mean() + F.softplus(made).mean()

    model = Discriminating(detached)
    ((severity, cause, name, message),) = said(model, torch.randn(8, 8), "GS403", loss, None)
    assert (severity, cause, name) == ("info", "batch-norm", "g.1")
    assert "every trainable layer gets other inputs too" in message


def test_a_margin_that_the_batch_satisfies():
    model = nn.Linear(4, 1)
    nn.init.constant_(model.bias, 50.0)
    ((severity, cause, _, message),) = said(
        model, torch.rand(8, 4), "GS103", lambda out: F.relu(1 - out).mean(), None
    )
    assert (severity, cause) == ("info", None)
    assert "nothing left to learn" in message


class Functional(nn.Module):
    """The second rectifier is dead, and is no module."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.constant_(self.fc1.bias, -99.0)

    def forward(self, x):
        h = F.relu(self.conv(x)).mean((2, 3))
        h = F.relu(self.fc1(h).view(-1, 8))
        return self.fc2(h)


def test_a_dead_function_has_the_name_of_the_layer_in_front():
    ((severity, cause, name, message),) = said(Functional(), torch.randn(8, 3, 6, 6), "GS103")
    assert (severity, cause, name) == ("error", "dead-activation", "fc1")
    assert "5 parameters upstream" in message


class Momentum(nn.Module):
    """BYOL and MoCo: the target follows the online network, in train mode like it."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))
        self.target = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)).requires_grad_(False)

    def forward(self, x):
        return self.online(x) - self.target(x + 1).detach()


def test_a_momentum_encoder_in_train_mode_is_worth_knowing_at_most():
    ((severity, _, name, message),) = said(Momentum(), torch.randn(8, 8), "GS403", None, None)
    assert (severity, name) == ("info", "target.1")
    assert "another part of the same shapes trains" in message
