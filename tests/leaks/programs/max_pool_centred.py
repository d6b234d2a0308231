"""A smoothing `MaxPool1d` of stride one has its window centred on each step."""

import torch
import torch.nn.functional as F
from torch import nn


class Stage(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3)
        self.pool = nn.MaxPool1d(3, stride=1, padding=1)

    def smooth(self, x):
        return self.pool(x)  # leak

    def forward(self, x):
        return x + self.smooth(F.elu(self.conv(F.pad(x, (2, 0)))))


class CausalStage(Stage):
    def __init__(self, channels):
        super().__init__(channels)
        self.pool = nn.MaxPool1d(3, stride=1)

    def smooth(self, x):
        return self.pool(F.pad(x, (2, 0), value=float("-inf")))


class Leaky(nn.Module):
    stage = Stage

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 1)
        self.stages = nn.ModuleList([self.stage(8), self.stage(8)])
        self.head = nn.Conv1d(8, 5, 1)

    def forward(self, signal):
        x = self.stem(signal)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


class Mended(Leaky):
    stage = CausalStage


def inputs() -> dict[str, torch.Tensor]:
    return {"signal": torch.randn(2, 3, 14, generator=torch.Generator().manual_seed(33))}


OPTIONS: dict[str, object] = {"causal": True, "axis": {"time": 2}}
AXIS = "time"
CALL = "stages.0.pool"
