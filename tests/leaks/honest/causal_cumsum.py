"""Honest: running means and a running log-sum-exp read nothing that comes later."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=30, d=10):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mix = nn.Linear(3 * d, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        steps = torch.arange(1, x.size(1) + 1)[:, None]
        mean, peak = x.cumsum(1) / steps, x.logcumsumexp(1) - steps.log()
        return self.head(torch.tanh(self.mix(torch.cat([x, mean, peak], dim=-1))))


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 13), generator=torch.Generator().manual_seed(9))}


OPTIONS: dict[str, object] = {"causal": True}
