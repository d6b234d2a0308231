"""`LayerNorm` is built with the shape of the whole window and so normalises over time."""

import torch
from torch import nn

WINDOW, CHANNELS = 12, 8


class ForecastBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape)
        self.gru = nn.GRU(CHANNELS, CHANNELS, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(CHANNELS, 16), nn.ReLU(), nn.Linear(16, CHANNELS))

    def pre(self, x):
        return self.norm(x)  # leak

    def forward(self, x):
        h, _ = self.gru(self.pre(x))
        return x + self.ff(h)


class MendedForecastBlock(ForecastBlock):
    def pre(self, x):
        return self.norm(x)


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, CHANNELS)
        self.block1 = self.make()
        self.block2 = self.make()
        self.out = nn.Linear(CHANNELS, 1)

    def make(self):
        return ForecastBlock((WINDOW, CHANNELS))

    def forward(self, x):
        return self.out(self.block2(self.block1(self.inp(x))))


class Mended(Leaky):
    def make(self):
        return MendedForecastBlock(CHANNELS)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, WINDOW, 3, generator=torch.Generator().manual_seed(12))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "block1.norm"
