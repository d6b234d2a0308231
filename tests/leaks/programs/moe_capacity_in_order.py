"""Experts have room for some tokens of the batch, first come, first served, over all samples."""

import torch
import torch.nn.functional as F
from torch import nn


class SwitchFFN(nn.Module):
    def __init__(self, d, experts=2, capacity_factor=0.7):
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.w1 = nn.Parameter(torch.randn(experts, d, 2 * d) * d**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * d, d) * d**-0.5)
        self.capacity_factor = capacity_factor

    def dispatch(self, onehot):
        capacity = int(self.capacity_factor * onehot.shape[0] / onehot.shape[1])
        place = onehot.cumsum(0) * onehot  # leak
        return onehot * (place <= capacity)  # leak

    def forward(self, x):
        tokens = x.flatten(0, 1)
        gate, index = self.router(tokens).softmax(-1).max(-1)
        kept = self.dispatch(F.one_hot(index, self.w1.shape[0])).to(x.dtype)
        h = torch.relu(torch.einsum("nd,edh->neh", tokens, self.w1))
        y = torch.einsum("neh,ehd,ne->nd", h, self.w2, kept)
        return (y * gate[:, None]).view_as(x)


class DroplessFFN(SwitchFFN):
    def dispatch(self, onehot):
        return onehot


class Leaky(nn.Module):
    ffn = SwitchFFN

    def __init__(self, vocab=30, d=10):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocab, d)
        self.moe = self.ffn(d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.out(x + self.moe(self.norm(x)))


class Mended(Leaky):
    ffn = DroplessFFN


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (3, 12), generator=torch.Generator().manual_seed(54))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "batch"
ALSO = {"time"}
CALL = "moe"
