"""The heads are made by `view(B, heads, T, -1)`, which cuts across time, before a correct mask."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def shape(self, states, bsz, seq):
        return states.view(bsz, self.num_heads, seq, -1)  # leak

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak

    def forward(self, hidden_states):
        bsz, seq, _ = hidden_states.size()
        q = self.shape(self.q_proj(hidden_states), bsz, seq)
        k = self.shape(self.k_proj(hidden_states), bsz, seq)
        v = self.shape(self.v_proj(hidden_states), bsz, seq)
        return self.o_proj(self.merge(self.attend(q, k, v)))

    def merge(self, out):
        return out.transpose(1, 2).flatten(2)  # leak


class MendedAttention(Attention):
    def shape(self, states, bsz, seq):
        return states.view(bsz, seq, self.num_heads, -1).transpose(1, 2)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def merge(self, out):
        return out.transpose(1, 2).flatten(2)


class Leaky(nn.Module):
    def __init__(self, attention=Attention):
        super().__init__()
        self.embed_tokens = nn.Embedding(32, 24)
        self.embed_positions = nn.Embedding(64, 24)
        self.input_layernorm = nn.LayerNorm(24)
        self.self_attn = attention(24, 3)
        self.lm_head = nn.Linear(24, 32)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1])
        x = self.embed_tokens(input_ids) + self.embed_positions(positions)
        return self.lm_head(x + self.self_attn(self.input_layernorm(x)))


class Mended(Leaky):
    def __init__(self):
        super().__init__(MendedAttention)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, (2, 12), generator=torch.Generator().manual_seed(5))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "self_attn"
