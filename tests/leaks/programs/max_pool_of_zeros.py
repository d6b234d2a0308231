"""Padded states are set to zero before a maximum, which is then zero where all are negative."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, vocab=40, d=12, classes=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.fc = nn.Linear(d, classes)

    def pooled(self, h, keep):
        return (h * keep).max(dim=1).values  # leak

    def forward(self, input_ids, attention_mask):
        h = self.mlp(self.embedding(input_ids))
        return self.fc(self.pooled(h, attention_mask[..., None]))


class Mended(Leaky):
    def pooled(self, h, keep):
        return h.masked_fill(keep == 0, float("-inf")).max(dim=1).values


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 40, (3, 4), generator=torch.Generator().manual_seed(64))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = ""
