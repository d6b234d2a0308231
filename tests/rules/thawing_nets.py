"""Networks that undo what a config froze, and one that does not."""

from __future__ import annotations

from torch import nn


class Stays(nn.Module):
    """A body and a head; whoever freezes the body finds it frozen."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Thaws(Stays):
    """Its `train` switches every gradient on."""

    def train(self, mode=True):
        for parameter in self.parameters():
            parameter.requires_grad_(mode)
        return super().train(mode)


class ThawsInForward(Stays):
    """Its `forward` unfreezes the body at step 0."""

    def forward(self, x):
        self.body.requires_grad_(True)
        return super().forward(x)
