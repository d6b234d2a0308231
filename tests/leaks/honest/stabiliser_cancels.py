"""Honest: a maximum over all time keeps `exp` small and cancels out, up to rounding."""

import torch
from torch import nn


class Model(nn.Module):
    """An attention-free layer: weighted running means."""

    def __init__(self, vocab=24, d=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.k, self.v, self.r = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        k = self.k(x)
        w = torch.exp(k - k.amax(dim=1, keepdim=True))
        mean = (w * self.v(x)).cumsum(1) / w.cumsum(1)
        return self.head(torch.sigmoid(self.r(x)) * mean)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(24, (2, 10), generator=torch.Generator().manual_seed(15))}


OPTIONS: dict[str, object] = {"causal": True}
