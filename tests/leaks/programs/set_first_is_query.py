"""A set is pooled by attention whose query is its first member."""

import torch
from torch import nn


class AttentionPool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.seed = nn.Parameter(torch.randn(1, 1, d))
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def query(self, h):
        return self.q(h[:, :1])  # leak

    def forward(self, h):
        scores = self.query(h) @ self.k(h).mT / h.size(-1) ** 0.5
        return (scores.softmax(-1) @ self.v(h)).squeeze(1)


class SeedPool(AttentionPool):
    def query(self, h):
        return self.q(self.seed.expand(h.size(0), -1, -1))


class Leaky(nn.Module):
    pool_class = AttentionPool

    def __init__(self, features=3, d=12, classes=4):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(features, d), nn.ReLU(), nn.Linear(d, d))
        self.pool = self.pool_class(d)
        self.rho = nn.Linear(d, classes)

    def forward(self, points):
        return self.rho(self.pool(self.phi(points)))


class Mended(Leaky):
    pool_class = SeedPool


def inputs() -> dict[str, torch.Tensor]:
    return {"points": torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(81))}


OPTIONS: dict[str, object] = {"axis": {"order": 1}}
AXIS = "order"
CALL = "pool"
