"""Honest: padding on the left is masked, and positions count tokens alone.

Only outputs at padding, whose rows have nothing left to see, see everything: nobody reads them.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=50, d=16):
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, input_ids, attention_mask):
        n = input_ids.size(1)
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        x = self.embed(input_ids) + self.pos(positions)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(n, n).tril().bool() & attention_mask.bool()[:, None]
        mask = torch.where(seen, 0.0, torch.finfo(q.dtype).min)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.lm_head(x + self.proj(y.transpose(1, 2).flatten(2)))


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(10))
    mask = (torch.arange(9) >= torch.tensor([[3], [0], [5]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {"causal": True}
