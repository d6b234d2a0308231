"""The gate of a mixture is a softmax over the batch, not over the experts."""

import torch
from torch import nn


class Gate(nn.Module):
    dim = 0

    def __init__(self, d, experts):
        super().__init__()
        self.score = nn.Linear(d, experts)
        self.softmax = nn.Softmax(dim=self.dim)

    def forward(self, x):
        return self.softmax(self.score(x))  # leak


class MendedGate(Gate):
    dim = -1

    def forward(self, x):
        scores = self.score(x)
        return self.softmax(scores)


class Leaky(nn.Module):
    gate_class = Gate

    def __init__(self, features=8, classes=3, experts=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.gate = self.gate_class(16, experts)
        self.experts = nn.ModuleList(nn.Linear(16, classes) for _ in range(experts))

    def forward(self, x):
        h = self.trunk(x)
        outs = torch.stack([e(h) for e in self.experts], dim=1)
        return (self.gate(h)[..., None] * outs).sum(1)


class Mended(Leaky):
    gate_class = MendedGate


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 8, generator=torch.Generator().manual_seed(50))}


OPTIONS: dict[str, object] = {}
AXIS = "batch"
CALL = "gate.softmax"
