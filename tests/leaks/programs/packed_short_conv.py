"""The short convolution of a state-space block runs across the borders of packed documents."""

import torch
import torch.nn.functional as F
from torch import nn


class ShortConv(nn.Module):
    def __init__(self, d, kernel=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, kernel) * 0.3)
        self.kernel = kernel

    def forward(self, x, seq_idx):
        y = torch.zeros_like(x)
        for back in range(self.kernel):
            y = y + self.weight[:, back] * self.delayed(x, seq_idx, back)
        return F.silu(y)

    def delayed(self, x, seq_idx, back):
        return F.pad(x, (0, 0, back, -back)) if back else x  # leak


class DocumentConv(ShortConv):
    def delayed(self, x, seq_idx, back):
        if back == 0:
            return x
        same = seq_idx == F.pad(seq_idx, (back, -back), value=-1)
        return F.pad(x, (0, 0, back, -back)) * same[..., None]


class Leaky(nn.Module):
    conv = ShortConv

    def __init__(self, vocab=30, d=10):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.conv1d = self.conv(d)
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids, seq_idx):
        x = self.embedding(input_ids)
        return self.lm_head(self.norm(x + self.conv1d(x, seq_idx)))


class Mended(Leaky):
    conv = DocumentConv


def inputs() -> dict[str, torch.Tensor]:
    seq_idx = torch.tensor([[0] * 4 + [1] * 6 + [2] * 2, [0] * 7 + [1] * 5])
    ids = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(56))
    return {"input_ids": ids, "seq_idx": seq_idx}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "documents"
CALL = "conv1d"
