"""ALiBi's distances are made symmetric, and nothing else keeps the future out."""

import torch
from torch import nn


def slopes(heads):
    return torch.tensor([2.0 ** (-8 * (i + 1) / heads) for i in range(heads)])


class AlibiAttention(nn.Module):
    def __init__(self, d=16, heads=4):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(d, 3 * d)
        self.dense = nn.Linear(d, d)
        self.register_buffer("slopes", slopes(heads))

    def distances(self, n):
        i = torch.arange(n)
        return i[None, :] - i[:, None]

    def probabilities(self, scores, n):
        bias = -self.distances(n).abs() * self.slopes[:, None, None]  # leak
        return torch.softmax(scores + bias, dim=-1)  # leak

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.query_key_value(x).view(b, n, self.heads, 3, d // self.heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        p = self.probabilities(q @ k.mT / k.shape[-1] ** 0.5, n)
        return self.dense((p @ v).transpose(1, 2).flatten(2))


class MendedAlibiAttention(AlibiAttention):
    def probabilities(self, scores, n):
        d = self.distances(n)
        bias = (d * self.slopes[:, None, None]).masked_fill(d > 0, float("-inf"))
        return torch.softmax(scores + bias, dim=-1)


class Leaky(nn.Module):
    attention = AlibiAttention

    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(33, 16)
        self.norm = nn.LayerNorm(16)
        self.attn1, self.attn2 = self.attention(), self.attention()
        self.lm_head = nn.Linear(16, 33)

    def forward(self, input_ids):
        x = self.word_embeddings(input_ids)
        x = x + self.attn1(self.norm(x))
        x = x + self.attn2(self.norm(x))
        return self.lm_head(x)


class Mended(Leaky):
    attention = MendedAlibiAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(33, (2, 12), generator=torch.Generator().manual_seed(37))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "attn1"
