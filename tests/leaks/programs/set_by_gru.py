"""A set is summed up by a GRU, which depends on the order of its members."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, features=4, d=12):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(features, d), nn.GELU())
        self.reduce = self.reducer(d)
        self.rho = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    def reducer(self, d):
        return nn.GRU(d, d, batch_first=True)

    def reduced(self, h):
        return self.reduce(h)[1][0]  # leak

    def forward(self, x):
        return self.rho(self.reduced(self.phi(x)))


class Mended(Leaky):
    def reducer(self, d):
        return nn.Linear(d, d)

    def reduced(self, h):
        return self.reduce(h).sum(dim=1)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(82))}


OPTIONS: dict[str, object] = {"axis": {"order": 1}}
AXIS = "order"
CALL = "reduce"
