"""A sliding window is centred: tokens see three back and three ahead."""

import torch
import torch.nn.functional as F
from torch import nn


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def allowed(self, n):
        i = torch.arange(n)
        return (i[:, None] - i[None, :]).abs() <= self.window  # leak

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # leak

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = self.attend(q, k, v, self.allowed(x.shape[1]))
        return self.to_out(out.transpose(1, 2).flatten(2))


class CausalWindowAttention(WindowAttention):
    def allowed(self, n):
        back = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        return (back >= 0) & (back <= self.window)

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask)


class Leaky(nn.Module):
    def __init__(self, attention=WindowAttention, window=3):
        super().__init__()
        self.embed = nn.Embedding(44, 16)
        self.pos = nn.Embedding(64, 16)
        self.attn = attention(16, 2, window)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.out = nn.Linear(16, 44)

    def forward(self, input_ids):
        x = self.embed(input_ids) + self.pos(torch.arange(input_ids.size(1)))
        x = x + self.attn(x)
        return self.out(x + self.mlp(x))


class Mended(Leaky):
    def __init__(self):
        super().__init__(CausalWindowAttention)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(44, (2, 16), generator=torch.Generator().manual_seed(38))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "attn"
