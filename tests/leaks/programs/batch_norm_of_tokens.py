"""A `BatchNorm1d` without running statistics normalises over batch and time, also in eval mode."""

import torch
from torch import nn


class TokenMLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.bn = nn.BatchNorm1d(2 * d, track_running_stats=False)

    def normalise(self, h):
        return self.bn(h)  # leak

    def forward(self, x):
        b, t, d = x.shape
        h = self.normalise(self.fc1(x).view(b * t, -1))
        return x + self.fc2(torch.relu(h)).view(b, t, d)


class MendedTokenMLP(TokenMLP):
    def __init__(self, d):
        super().__init__(d)
        self.bn = nn.LayerNorm(2 * d)

    def normalise(self, h):
        return self.bn(h)


class Leaky(nn.Module):
    mlp = TokenMLP

    def __init__(self, vocab=30, d=10):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.mlp1 = self.mlp(d)
        self.logits = nn.Linear(d, vocab)

    def forward(self, input_ids):
        h, _ = self.rnn(self.embedding(input_ids))
        return self.logits(self.mlp1(h))


class Mended(Leaky):
    mlp = MendedTokenMLP


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (3, 10), generator=torch.Generator().manual_seed(49))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "batch"
ALSO = {"time"}
CALL = "mlp1.bn"
