"""Broken programs for GS403, GS406 and GS407: fine-tuning that freezes by halves."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program

X = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(6))
Y = torch.arange(8) % 3
NETS = Path(__file__).with_name("thawing_nets.py")


class Tuned(nn.Module):
    """A convolutional body and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(self.stem(x)).mean((2, 3)))


@program("GS403", "stem.1", "stem", severity="warning")
def frozen_backbone_with_live_statistics(mended):
    """pytorch/pytorch#86590: requires_grad is off, and the running statistics still move."""
    model = Tuned()
    model.stem.requires_grad_(False)
    if mended:
        model.stem.eval()
    return Program(model, X, F.cross_entropy, Y)


@program("GS403", "encoder*", severity="warning")
def frozen_encoder_with_dropout(mended):
    """A frozen transformer layer in train mode: dropout still scatters what it gives."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.encoder(x).mean(1))

    model = Net()
    model.encoder.requires_grad_(False)
    if mended:
        model.encoder.eval()
    return Program(model, torch.randn(8, 5, 16), F.cross_entropy, Y)


@program("GS403", "stem.1", "stem", severity="warning")
def eval_undone_by_train(mended):
    """`freeze()` puts the norm to eval in the constructor; `model.train()` puts it back.

    pgniewko/gt-pyg#112.
    """

    class Frozen(Tuned):
        def __init__(self):
            super().__init__()
            self.stem.requires_grad_(False).eval()

        def train(self, mode=True):
            super().train(mode)
            if mended:
                self.stem.eval()
            return self

    return Program(Frozen().train(), X, F.cross_entropy, Y)


@program("GS406", "body*", severity="warning")
def thawed_again_by_its_own_train(mended):
    """The config freezes; the model's `train` sets requires_grad back."""
    name = "Stays" if mended else "Thaws"
    options = {"overrides": ['freeze=["body.**"]', "input.shape=[4, 8]"]}
    return Program(f"{NETS}:{name}", options=options)


@program("GS406", "body*", severity="warning")
def thawed_in_its_first_forward(mended):
    """Gradual unfreezing that counts its steps from the wrong end."""
    name = "Stays" if mended else "ThawsInForward"
    options = {"overrides": ['freeze=["body.**"]', "input.shape=[4, 8]"]}
    return Program(f"{NETS}:{name}", options=options)


@program("GS407", "stem", severity="info")
def gradient_through_a_frozen_stem(mended):
    """The input asks for a gradient, so backward runs through a body in which nothing learns."""

    class Net(Tuned):
        def forward(self, x):
            if not mended:
                x = x.clone().requires_grad_()
            return super().forward(x)

    model = Net()
    model.stem.requires_grad_(False).eval()
    return Program(model, X, F.cross_entropy, Y)


@program("GS407", "layers", "layers.0", severity="info")
def input_gradients_switched_on(mended):
    """`enable_input_require_grads()` of the adapter recipes, where only the last layer trains."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
            self.head = nn.Linear(8, 3)

        def forward(self, ids):
            x = self.embed(ids)
            if not mended:
                x.requires_grad_()
            return self.head(self.layers(x).mean(1))

    model = Net()
    model.embed.requires_grad_(False)
    model.layers.requires_grad_(False)
    return Program(model, torch.randint(0, 20, (8, 5)), F.cross_entropy, Y)
