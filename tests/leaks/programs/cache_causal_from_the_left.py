"""`is_causal=True` aligns its mask to the top left: one new query sees the first key alone."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak

    def forward(self, x, past=None):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        return self.c_proj(self.attend(q, k, v).transpose(1, 2).flatten(2)), (k, v)


class MendedAttention(Attention):
    def attend(self, q, k, v):
        n, m = q.size(-2), k.size(-2)
        lower_right = torch.arange(m) <= torch.arange(m - n, m)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=lower_right)


class Leaky(nn.Module):
    attention = Attention

    def __init__(self, vocab=32, d=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.blocks = nn.ModuleList([self.attention(d) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        past = past_key_values or (None,) * len(self.blocks)
        start = 0 if past[0] is None else past[0][0].size(-2)
        x = self.tok(input_ids) + self.pos.weight[start : start + input_ids.size(1)]
        present = ()
        for block, p in zip(self.blocks, past, strict=True):
            y, kv = block(self.norm(x), p)
            x, present = x + y, (*present, kv)
        return {"logits": self.head(x), "past_key_values": present if use_cache else None}


class Mended(Leaky):
    attention = MendedAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(85))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "cache"
CALL = "blocks.0"
