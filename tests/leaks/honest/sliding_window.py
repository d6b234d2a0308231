"""Honest: the window looks back alone, and its mask is one of False for hidden."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=33, d=16, window=4):
        super().__init__()
        self.window = window
        self.embed, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        n = input_ids.size(1)
        x = self.embed(input_ids) + self.pos.weight[:n]
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        back = torch.arange(n)[:, None] - torch.arange(n)
        mask = (back >= 0) & (back < self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.lm_head(x + self.proj(y.transpose(1, 2).flatten(2)))


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(33, (2, 14), generator=torch.Generator().manual_seed(3))}


OPTIONS: dict[str, object] = {"causal": True}
