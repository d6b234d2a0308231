"""Honest: convolutions of stride two are padded on the left, so output k ends at input 2 k."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=30, d=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv1 = nn.Conv1d(d, d, 3)
        self.conv2 = nn.Conv1d(d, d, 3, stride=2)
        self.head = nn.Linear(d, 6)

    def forward(self, input_ids):
        x = self.emb(input_ids).mT
        x = F.relu(self.conv1(F.pad(x, (2, 0))))
        x = F.relu(self.conv2(F.pad(x, (2, 0))))
        return self.head(x.mT)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(1))}


OPTIONS: dict[str, object] = {"causal": True}
