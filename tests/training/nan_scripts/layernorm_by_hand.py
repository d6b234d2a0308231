"""LayerNorm without an epsilon meets a blank patch."""
import sys

import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = ((x - mean) ** 2).mean(-1, keepdim=True).add(self.eps).sqrt()
        return self.weight * ((x - mean) / std) + self.bias


class PatchModel(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.norm = LayerNorm(16, eps)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 3))

    def forward(self, patches):
        return self.mlp(self.norm(patches)).mean(1)


def main(eps):
    torch.manual_seed(0)
    model = PatchModel(eps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(14):
        patches = torch.rand(6, 9, 16)
        if i == 10:
            patches[4, 0] = 0.5
        loss = nn.functional.cross_entropy(model(patches), torch.randint(3, (6,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main(1e-5 if "--healthy" in sys.argv else 0.0)
