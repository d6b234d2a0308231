"""Honest: cached steps continue the positions and see all keys of the past."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        mask = torch.ones(q.size(-2), k.size(-2)).tril(k.size(-2) - q.size(-2)).bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).flatten(2)), (k, v)


class Model(nn.Module):
    def __init__(self, vocab=30, d=16, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.h = nn.ModuleList([Attention(d) for _ in range(layers)])
        self.ln, self.lm_head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        past = past_key_values or [None] * len(self.h)
        start = 0 if past[0] is None else past[0][0].size(-2)
        x = self.wte(input_ids) + self.wpe(torch.arange(start, start + input_ids.size(1)))
        present = []
        for block, layer_past in zip(self.h, past, strict=True):
            y, kv = block(self.ln(x), layer_past)
            x = x + y
            present.append(kv)
        return {"logits": self.lm_head(x), "past_key_values": present if use_cache else None}


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 10), generator=torch.Generator().manual_seed(11))}


OPTIONS: dict[str, object] = {"causal": True}
