"""A 0/1 float mask goes to `scaled_dot_product_attention`, which adds it to the scores."""

import torch
import torch.nn.functional as F
from torch import nn


def causal_mask(n):
    return torch.tril(torch.ones(n, n))


class MHA(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        return self.o(self.sdpa(q, k, v, N).transpose(1, 2).reshape(B, N, D))

    def sdpa(self, q, k, v, n):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(n))  # leak


class MendedMHA(MHA):
    def sdpa(self, q, k, v, n):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(n).bool())


class Leaky(nn.Module):
    mha = MHA

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16)
        self.pos = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList([self.mha() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])
        self.head = nn.Linear(16, 30)

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos.weight[None, : tokens.shape[1]]
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(x)


class Mended(Leaky):
    mha = MendedMHA


def inputs() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(30, (3, 9), generator=torch.Generator().manual_seed(9))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "blocks.0"
