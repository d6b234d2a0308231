"""Padded scores are filled with 1e-9 where -1e9 was meant."""

import torch
from torch import nn


def split_heads(x, h):
    return x.view(x.size(0), -1, h, x.size(-1) // h).transpose(1, 2)


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def fill(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)  # leak

    def normalise(self, scores):
        return scores.softmax(dim=-1)  # leak

    def forward(self, x, mask):
        q, k, v = (split_heads(lin(x), self.h) for lin in self.linears[:3])
        scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
        p_attn = self.normalise(self.fill(scores, mask[:, None, None]))
        return self.linears[-1]((p_attn @ v).transpose(1, 2).flatten(2))


class MendedMultiHeadedAttention(MultiHeadedAttention):
    def fill(self, scores, mask):
        return scores.masked_fill(mask == 0, -1e9)

    def normalise(self, scores):
        return torch.softmax(scores, dim=-1)


class Leaky(nn.Module):
    attention = MultiHeadedAttention

    def __init__(self, vocab=30, d_model=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.self_attn = self.attention(4, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 32), nn.ReLU(), nn.Linear(32, d_model))
        self.generator = nn.Linear(d_model, 3)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        x = x + self.self_attn(self.norm(x), attention_mask)
        return self.generator(x + self.feed_forward(x))


class Mended(Leaky):
    attention = MendedMultiHeadedAttention


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 30, (2, 9), generator=torch.Generator().manual_seed(61))
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = "self_attn"
