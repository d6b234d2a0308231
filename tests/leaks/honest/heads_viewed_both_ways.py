"""Honest: heads cut across time by `view` both ways alike, odd, but it never looks ahead."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=32, d=24, heads=3):
        super().__init__()
        self.heads = heads
        self.embed, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))
        self.o_proj, self.lm_head = nn.Linear(d, d), nn.Linear(d, vocab)

    def forward(self, input_ids):
        b, n = input_ids.shape
        x = self.embed(input_ids) + self.pos.weight[:n]
        q, k, v = (f(x).view(b, self.heads, n, -1) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.lm_head(x + self.o_proj(y.view(b, n, -1)))


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, (2, 12), generator=torch.Generator().manual_seed(16))}


OPTIONS: dict[str, object] = {"causal": True}
