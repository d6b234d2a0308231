"""The cache that is handed on lacks the newest key and value."""

import torch
import torch.nn.functional as F
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))
        self.o_proj = nn.Linear(d, d)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def kept(self, k, v):
        return k[:, :, :-1], v[:, :, :-1]  # leak

    def forward(self, x, past=None):
        q, k, v = (self.split(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        visible = torch.ones(q.size(2), k.size(2)).tril(k.size(2) - q.size(2)).bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.o_proj(y.transpose(1, 2).flatten(2)), self.kept(k, v)


class MendedCachedAttention(CachedAttention):
    def kept(self, k, v):
        return k, v


class Leaky(nn.Module):
    attention = CachedAttention

    def __init__(self, vocab=36, d=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.self_attn = self.attention(d)
        self.norm = nn.RMSNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        x = self.embed_tokens(input_ids)
        y, past = self.self_attn(self.norm(x), past_key_values)
        logits = self.lm_head(self.norm(x + y))
        return (logits, past) if use_cache else (logits,)


class Mended(Leaky):
    attention = MendedCachedAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(36, (2, 9), generator=torch.Generator().manual_seed(84))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "cache"
CALL = "self_attn"
