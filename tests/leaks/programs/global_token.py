"""As in Longformer, the first token sees everything, which a causal model must not allow."""

import torch
from torch import nn


class SparseAttention(nn.Module):
    def __init__(self, d, window=4):
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(d, 3 * d)
        self.dense = nn.Linear(d, d)

    def local(self, n):
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        return (j <= i) & (i - j < self.window) | (j == 0)

    def attend(self, scores, mask):
        mask[0] = True  # leak
        return scores.masked_fill(~mask, -1e9).softmax(-1)  # leak

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) * q.size(-1) ** -0.5
        return self.dense(self.attend(scores, self.local(x.size(1))) @ v)


class CausalSparseAttention(SparseAttention):
    def attend(self, scores, mask):
        return scores.masked_fill(~mask, -1e9).softmax(-1)


class Leaky(nn.Module):
    attention = SparseAttention

    def __init__(self, vocab=36, d=12):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, d)
        self.position_embeddings = nn.Embedding(64, d)
        self.layer = nn.ModuleList([self.attention(d), self.attention(d)])
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1])
        h = self.norm(self.embeddings(input_ids) + self.position_embeddings(positions))
        for layer in self.layer:
            h = h + layer(h)
        return self.lm_head(h)


class Mended(Leaky):
    attention = CausalSparseAttention


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(36, (2, 14), generator=torch.Generator().manual_seed(41))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layer.0"
