"""The move to `scaled_dot_product_attention` lost `is_causal=True`."""

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.wo = nn.Linear(dim, dim, bias=False)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)  # leak
        return self.wo(y.transpose(1, 2).flatten(2))


class CausalSelfAttention(SelfAttention):
    def forward(self, x):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, attention, dim=16):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = attention(dim, 2)
        self.w1, self.w3, self.w2 = nn.Linear(dim, 32), nn.Linear(dim, 32), nn.Linear(32, dim)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Leaky(nn.Module):
    def __init__(self, attention=SelfAttention):
        super().__init__()
        self.tok_embeddings = nn.Embedding(60, 16)
        self.pos = nn.Parameter(torch.randn(32, 16) * 0.02)
        self.layers = nn.ModuleList(Layer(attention) for _ in range(3))
        self.norm, self.output = nn.RMSNorm(16), nn.Linear(16, 60, bias=False)

    def forward(self, input_ids):
        x = self.tok_embeddings(input_ids) + self.pos[: input_ids.shape[-1]]
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class Mended(Leaky):
    def __init__(self):
        super().__init__(CausalSelfAttention)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(60, (2, 16), generator=torch.Generator().manual_seed(3))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layers.0.attention"
