"""An LSTM without `batch_first=True` runs through the samples as if they were steps of time."""

import torch
from torch import nn


class Leaky(nn.Module):
    """Tags each frame of a signal."""

    def __init__(self, n_mels=5, hidden=12, tags=4):
        super().__init__()
        self.proj = nn.Linear(n_mels, hidden)
        self.lstm = self.recurrent(hidden)
        self.tagger = nn.Linear(hidden, tags)

    def recurrent(self, hidden):
        return nn.LSTM(hidden, hidden)

    def encode(self, x):
        h, (_, _) = self.lstm(x)  # leak
        return h

    def forward(self, x):
        x = torch.relu(self.proj(x))
        return self.tagger(self.encode(x))


class Mended(Leaky):
    def recurrent(self, hidden):
        return nn.LSTM(hidden, hidden, batch_first=True)

    def encode(self, x):
        return self.lstm(x)[0]


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 9, 5, generator=torch.Generator().manual_seed(48))}


OPTIONS: dict[str, object] = {}
AXIS = "batch"
CALL = "lstm"
