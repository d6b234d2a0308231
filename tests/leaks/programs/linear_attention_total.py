"""Linear attention sums keys times values over all of time, as its encoder form does."""

import torch
import torch.nn.functional as F
from torch import nn


class LinearAttention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        return self.to_out(self.mix(F.elu(q) + 1, F.elu(k) + 1, v).flatten(2))

    def mix(self, q, k, v):
        kv = torch.einsum("bnhd,bnhe->bhde", k, v)  # leak
        z = 1 / torch.einsum("bnhd,bhd->bnh", q, k.sum(dim=1))  # leak
        return torch.einsum("bnhd,bhde,bnh->bnhe", q, kv, z)  # leak


class CausalLinearAttention(LinearAttention):
    def mix(self, q, k, v):
        kv = torch.einsum("bnhd,bnhe->bnhde", k, v).cumsum(1)
        z = 1 / torch.einsum("bnhd,bnhd->bnh", q, k.cumsum(1))
        return torch.einsum("bnhd,bnhde,bnh->bnhe", q, kv, z)


class Leaky(nn.Module):
    attention = LinearAttention

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(30, 16)
        self.position = nn.Embedding(64, 16)
        self.attn = nn.ModuleList([self.attention(), self.attention()])
        self.norm = nn.LayerNorm(16)
        self.logits = nn.Linear(16, 30)

    def forward(self, input_ids):
        x = self.token(input_ids) + self.position.weight[: input_ids.shape[1]]
        for attn in self.attn:
            x = x + attn(self.norm(x))
        return self.logits(x)


class Mended(Leaky):
    attention = CausalLinearAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 10), generator=torch.Generator().manual_seed(22))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "attn.0"
