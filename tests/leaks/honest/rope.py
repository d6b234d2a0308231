"""Honest: rotary angles depend on positions alone, and `is_causal` hides the future."""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x):
    n, d = x.shape[-2:]
    angles = torch.outer(torch.arange(n), 10000.0 ** (-torch.arange(0, d, 2) / d))
    rotated = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    rotated = rotated * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(rotated).flatten(-2)


class Model(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.norm, self.lm_head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.lm_head(self.norm(x + self.proj(y.transpose(1, 2).flatten(2))))


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(40, (3, 11), generator=torch.Generator().manual_seed(5))}


OPTIONS: dict[str, object] = {"causal": True}
