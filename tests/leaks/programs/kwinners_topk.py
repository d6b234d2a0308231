"""A sparsity layer keeps the k highest activations over time in each channel."""

import torch
from torch import nn


class KWinners(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        threshold = x.topk(self.k, dim=1).values[:, -1:]  # leak
        return x * (x >= threshold)  # leak


class KWinnersOfChannels(KWinners):
    def forward(self, x):
        least = x.topk(self.k, dim=-1).values[..., -1:]
        return x * (x >= least)


class Leaky(nn.Module):
    winners = KWinners

    def __init__(self, vocab=30, d=16):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocab, d)
        self.up = nn.Linear(d, d)
        self.sparse = self.winners(4)
        self.rnn = nn.RNN(d, d, batch_first=True)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        h = self.sparse(self.up(self.embed(input_ids)))
        return self.head(self.rnn(h)[0])


class Mended(Leaky):
    winners = KWinnersOfChannels


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(43))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "sparse"
