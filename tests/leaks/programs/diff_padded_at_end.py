"""A feature of differences is padded at its end, so each step holds the change to the next one."""

import torch
import torch.nn.functional as F
from torch import nn


class Differences(nn.Module):
    """Adds the change of each channel as a further channel."""

    def forward(self, x):
        change = F.pad(x.diff(dim=1), (0, 0, 0, 1))  # leak
        return torch.cat([x, change], dim=-1)  # leak


class MendedDifferences(nn.Module):
    def forward(self, x):
        return torch.cat([x, F.pad(x.diff(dim=1), (0, 0, 1, 0))], dim=-1)


class Leaky(nn.Module):
    def __init__(self, features=Differences, channels=5, hidden=12):
        super().__init__()
        self.features = features()
        self.rnn = nn.GRU(2 * channels, hidden, batch_first=True)
        self.head = nn.Linear(hidden, channels)

    def forward(self, x):
        h, _ = self.rnn(self.features(x))
        return x + self.head(h)


class Mended(Leaky):
    def __init__(self):
        super().__init__(MendedDifferences)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 10, 5, generator=torch.Generator().manual_seed(31))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "features"
