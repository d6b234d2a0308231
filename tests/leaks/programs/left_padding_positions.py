"""Rows padded on the left get positions that count the padding."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).flatten(2))


class Leaky(nn.Module):
    def __init__(self, vocab=50, d=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Parameter(torch.randn(64, d))
        self.h = nn.ModuleList([Attention(d) for _ in range(2)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def embed(self, input_ids, attention_mask):
        return self.wte(input_ids) + self.wpe[: input_ids.shape[1]]  # leak

    def forward(self, input_ids, attention_mask):
        n = input_ids.shape[1]
        seen = attention_mask.bool()[:, None, :] & torch.ones(n, n).tril().bool()
        mask = (seen | torch.eye(n, dtype=torch.bool))[:, None]
        x = self.embed(input_ids, attention_mask)
        for block in self.h:
            x = x + block(self.ln_f(x), mask)
        return self.lm_head(self.ln_f(x))


class Mended(Leaky):
    def embed(self, input_ids, attention_mask):
        position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return self.wte(input_ids) + self.wpe[position_ids]


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (3, 10), generator=torch.Generator().manual_seed(68))
    mask = (torch.arange(10) >= torch.tensor([[0], [4], [2]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "padding"
CALL = ""
