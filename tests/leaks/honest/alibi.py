"""Honest: ALiBi's penalties come on top of a mask that hides the future."""

import torch
from torch import nn


class Alibi(nn.Module):
    def __init__(self, d=16, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("slope", 2.0 ** (-2.0 * torch.arange(1, heads + 1)))

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        ahead = torch.arange(n) - torch.arange(n)[:, None]
        bias = (ahead * self.slope[:, None, None]).masked_fill(ahead > 0, float("-inf"))
        p = (q @ k.mT / k.size(-1) ** 0.5 + bias).softmax(-1)
        return self.out((p @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList([Alibi(), Alibi()])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(self.norm(x))
        return self.head(x)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(2))}


OPTIONS: dict[str, object] = {"causal": True}
