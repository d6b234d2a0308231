"""`nn.MultiheadAttention` hides where its mask is True, and is given the lower triangle."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def attend(self, h):
        mask = torch.tril(torch.ones(h.size(1), h.size(1), dtype=torch.bool), diagonal=-1)  # leak
        return self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]  # leak

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class MendedBlock(Block):
    def attend(self, h):
        mask = torch.triu(torch.ones(h.size(1), h.size(1), dtype=torch.bool), diagonal=1)
        return self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]


class Leaky(nn.Module):
    block = Block

    def __init__(self, vocab_size=36, dim=16, max_len=32):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.pos = nn.Parameter(0.1 * torch.randn(max_len, dim))
        self.trunk = nn.Sequential(self.block(), self.block())
        self.unembed = nn.Linear(dim, vocab_size)

    def forward(self, input_ids):
        return self.unembed(self.trunk(self.embed(input_ids) + self.pos[: input_ids.size(1)]))


class Mended(Leaky):
    block = MendedBlock


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(36, (2, 11), generator=torch.Generator().manual_seed(10))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "trunk.0.attn"
