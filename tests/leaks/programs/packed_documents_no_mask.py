"""Packed documents are masked causally, but not from one another."""

import torch
import torch.nn.functional as F
from torch import nn


class PackedAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def attend(self, q, k, v, document_ids):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak

    def forward(self, x, document_ids):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.attend(q, k, v, document_ids)
        return self.proj(y.transpose(1, 2).flatten(2))


class DocumentAttention(PackedAttention):
    def attend(self, q, k, v, document_ids):
        same = document_ids[:, :, None] == document_ids[:, None, :]
        mask = same.tril()[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Leaky(nn.Module):
    attention = PackedAttention

    def __init__(self, vocab=50, d=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.embed_positions = nn.Embedding(32, d)
        self.layers = nn.ModuleList([self.attention(d, 2) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids, position_ids, document_ids):
        x = self.embed_tokens(input_ids) + self.embed_positions(position_ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), document_ids)
        return self.lm_head(x)


class Mended(Leaky):
    attention = DocumentAttention


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(55)
    documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 4 + [1] * 4 + [2] * 4])
    positions = torch.tensor([[*range(5), *range(7)], [*range(4), *range(4), *range(4)]])
    ids = torch.randint(50, (2, 12), generator=g)
    return {"input_ids": ids, "position_ids": positions, "document_ids": documents}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "documents"
CALL = "layers.0"
