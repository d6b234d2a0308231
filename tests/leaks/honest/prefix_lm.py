"""Honest: tokens of the prefix see one another, as `prefix_length` declares; the rest is causal."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=30, d=16):
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, vocab))

    def forward(self, input_ids, prefix_length):
        n = input_ids.size(1)
        x = self.embed(input_ids) + self.pos.weight[:n]
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        prefix = torch.arange(n) < prefix_length[:, None]
        mask = torch.ones(n, n).tril().bool() | prefix[:, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        return self.head(x + self.proj(y.transpose(1, 2).flatten(2)))


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(4))
    return {"input_ids": ids, "prefix_length": torch.tensor([5, 5])}


OPTIONS: dict[str, object] = {"causal": True}
