"""The causal mask starts at the second diagonal above the main one, so each token sees the next."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = self.attend(q @ k.transpose(-1, -2) * self.scale) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))

    def attend(self, dots):
        future = torch.ones(dots.shape[-2:], dtype=torch.bool).triu(2)  # leak
        return dots.masked_fill(future, -torch.finfo(dots.dtype).max).softmax(-1)  # leak


class CausalAttention(Attention):
    def attend(self, dots):
        future = torch.ones(dots.shape[-2:], dtype=torch.bool).triu(1)
        return dots.masked_fill(future, -torch.finfo(dots.dtype).max).softmax(-1)


class Leaky(nn.Module):
    def __init__(self, attention=Attention, dim=16, vocab=40, depth=2):
        super().__init__()
        self.token_emb, self.pos_emb = nn.Embedding(vocab, dim), nn.Embedding(64, dim)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
            self.layers.append(nn.ModuleList([nn.LayerNorm(dim), attention(dim, 4), ff]))
        self.to_logits = nn.Linear(dim, vocab)

    def forward(self, input_ids):
        x = self.token_emb(input_ids) + self.pos_emb.weight[: input_ids.shape[1]]
        for norm, attn, ff in self.layers:
            x = x + attn(norm(x))
            x = x + ff(x)
        return self.to_logits(x)


class Mended(Leaky):
    def __init__(self):
        super().__init__(CausalAttention)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(40, (3, 10), generator=torch.Generator().manual_seed(2))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layers.0.1"
