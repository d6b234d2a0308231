"""A GPT block registers its causal mask and never applies it to the scores."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd=16, n_head=2, block_size=32):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", mask.view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        y = self.weights(att, T) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    def weights(self, att, T):
        return F.softmax(att, dim=-1)  # leak


class MaskedSelfAttention(CausalSelfAttention):
    def weights(self, att, T):
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attn = attention()
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Leaky(nn.Module):
    attention = CausalSelfAttention

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.h = nn.ModuleList([Block(self.attention) for _ in range(2)])
        self.lm_head = nn.Linear(16, 50, bias=False)

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.size(1)))
        for block in self.h:
            x = block(x)
        return self.lm_head(x)


class Mended(Leaky):
    attention = MaskedSelfAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "h.0.attn"
