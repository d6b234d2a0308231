"""Features are centred by the mean of the batch they happen to be in, also at inference."""

import torch
from torch import nn


class Leaky(nn.Module):
    """A projection head of self-supervised learning, with a linear probe on it."""

    def __init__(self, d=10, out=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, d), nn.Tanh(), nn.Linear(d, d))
        self.register_buffer("centre", torch.zeros(d))
        self.probe = nn.Linear(d, out)

    def centred(self, z):
        return z - z.mean(dim=0, keepdim=True)  # leak

    def forward(self, x):
        z = self.encoder(x)
        return {"features": z, "logits": self.probe(self.centred(z))}


class Mended(Leaky):
    def centred(self, z):
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(z.mean(dim=0), 0.1)
        return z - self.centre


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 8, generator=torch.Generator().manual_seed(57))}


OPTIONS: dict[str, object] = {}
AXIS = "batch"
CALL = ""
