"""Small networks whose layers give maps, tokens, sequences, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convs(nn.Module):
    """Images [N, 3, H, W] → [N, 5]; the ReLU writes into what the convolution gave."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv(x)).mean((2, 3)))


class Patches(nn.Module):
    """A transformer's tokens: a class token before those of 4 × 4 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        tokens = self.norm(torch.cat([self.token.expand(len(x), -1, -1), patches], 1))
        return self.fc(tokens[:, 0])


class Rows(nn.Module):
    """Reads a picture row by row: a sequence, and no map."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.first = batch_first
        self.lstm = nn.LSTM(16, 7, batch_first=batch_first)
        self.fc = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.mean(1)
        steps, _ = self.lstm(rows if self.first else rows.transpose(0, 1))
        return self.fc(steps[:, -1] if self.first else steps[-1])


def images(count: int = 7, size: int = 16, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(3))
