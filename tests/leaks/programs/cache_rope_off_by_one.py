"""Rotary angles of a cached step are those of the step before."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, positions):
    half = x.size(-1) // 2
    angles = positions[:, None] * 100.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads = heads
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def rotated(self, x, seen):
        return rotate(x, torch.arange(x.size(-2)) + max(seen - 1, 0))  # leak

    def forward(self, x, past=None):
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = 0 if past is None else past[0].size(-2)
        q, k = self.rotated(q, seen), self.rotated(k, seen)
        if past is not None:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        mask = torch.ones(q.size(-2), k.size(-2)).tril(seen).bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).flatten(2)), (k, v)


class MendedRotaryAttention(RotaryAttention):
    def rotated(self, x, seen):
        return rotate(x, torch.arange(seen, seen + x.size(-2)))


class Leaky(nn.Module):
    attention = RotaryAttention

    def __init__(self, vocab=30, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.attn = self.attention(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        x = self.embed(input_ids)
        y, past = self.attn(x, past_key_values)
        return {"logits": self.lm_head(x + y), "past_key_values": past if use_cache else None}


class Mended(Leaky):
    attention = MendedRotaryAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 9), generator=torch.Generator().manual_seed(86))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "cache"
CALL = "attn"
