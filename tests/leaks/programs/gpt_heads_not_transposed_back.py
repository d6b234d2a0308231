"""After causal attention the heads are reshaped without the transpose back, which mixes times."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def heads(self, x):
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        y = self.heads(x).reshape(x.shape)  # leak
        return self.out_proj(y)


class MendedCausalAttention(CausalAttention):
    def forward(self, x):
        y = self.heads(x).transpose(1, 2).reshape(x.shape)
        return self.out_proj(y)


class DecoderLayer(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), attn(16, 4)
        self.ff = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU())

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.ff(x)


class Leaky(nn.Module):
    def __init__(self, attn=CausalAttention):
        super().__init__()
        self.input_proj = nn.Linear(5, 16)
        self.pos = nn.Parameter(torch.randn(1, 64, 16))
        self.decoder = nn.Sequential(DecoderLayer(attn), DecoderLayer(attn))
        self.forecast = nn.Linear(16, 5)

    def forward(self, x):
        return self.forecast(self.decoder(self.input_proj(x) + self.pos[:, : x.shape[1]]))


class Mended(Leaky):
    def __init__(self):
        super().__init__(MendedCausalAttention)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(6))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "decoder.0.attn"
