"""A "context" vector, the mean over all time steps, is added to every step of a causal model."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, d=12, vocab=30):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.context = nn.Linear(d, d)
        self.out = nn.Linear(d, vocab)

    def summary(self, x):
        return x.mean(dim=1, keepdim=True)  # leak

    def join(self, h, c):
        return h + self.context(c)  # leak

    def forward(self, input_ids):
        x = self.embed(input_ids)
        h, _ = self.rnn(x)
        return self.out(torch.tanh(self.join(h, self.summary(x))))


class Mended(Leaky):
    def summary(self, x):
        steps = torch.arange(1, x.size(1) + 1).view(1, -1, 1)
        return x.cumsum(dim=1) / steps

    def join(self, h, c):
        return self.context(c) + h


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (3, 10), generator=torch.Generator().manual_seed(11))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = ""
