"""Attention in blocks of four has no causal mask inside a block."""

import torch
from torch import nn


class BlockAttention(nn.Module):
    block = 4

    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def weights(self, scores):
        return scores.softmax(-1)  # leak

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n // self.block, self.block, d) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bgid,bgjd->bgij", q, k) / d**0.5
        y = torch.einsum("bgij,bgjd->bgid", self.weights(scores), v)
        return self.o(y.reshape(b, n, d))


class CausalBlockAttention(BlockAttention):
    def weights(self, scores):
        hidden = torch.ones(self.block, self.block).triu(1).bool()
        return scores.masked_fill(hidden, float("-inf")).softmax(-1)


class Leaky(nn.Module):
    attention = BlockAttention

    def __init__(self, vocab=28, d=12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.norm = nn.LayerNorm(d)
        self.local = self.attention(d)
        self.recurrent = nn.GRU(d, d, batch_first=True)
        self.fc = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.emb(input_ids) + self.pos.weight[: input_ids.size(1)]
        x = x + self.local(self.norm(x))
        x = x + self.recurrent(x)[0]
        return self.fc(x)


class Mended(Leaky):
    attention = CausalBlockAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(28, (2, 12), generator=torch.Generator().manual_seed(39))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "local"
