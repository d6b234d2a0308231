"""A prefix-LM opens the rows of the prefix, so its tokens see the whole target, not its columns."""

import torch
import torch.nn.functional as F
from torch import nn


class PrefixAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def visible(self, n, prefix_length):
        inside = torch.arange(n) < prefix_length[:, None]
        return torch.ones(n, n).tril().bool() | inside[:, :, None]  # leak

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])  # leak

    def forward(self, x, prefix_length):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        y = self.attend(q, k, v, self.visible(x.size(1), prefix_length))
        return self.out(y.transpose(1, 2).flatten(2))


class MendedPrefixAttention(PrefixAttention):
    def visible(self, n, prefix_length):
        inside = torch.arange(n) < prefix_length[:, None]
        return torch.ones(n, n).tril().bool() | inside[:, None, :]

    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask[:, None])


class Leaky(nn.Module):
    attention = PrefixAttention

    def __init__(self, vocab=30, d=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.layers = nn.ModuleList([self.attention(d, 2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids, prefix_length):
        x = self.tok(input_ids) + self.pos(torch.arange(input_ids.size(1)))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), prefix_length)
        return self.lm_head(x)


class Mended(Leaky):
    attention = MendedPrefixAttention


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(40))
    return {"input_ids": ids, "prefix_length": torch.tensor([4, 4])}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layers.0"
