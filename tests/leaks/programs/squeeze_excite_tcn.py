"""A causal TCN gates its channels by squeeze-and-excitation, which averages over all of time."""

import torch
import torch.nn.functional as F
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=2):
        super().__init__()
        self.fc = nn.Sequential(
            nn.Conv1d(channels, channels // reduction, 1),
            nn.ReLU(),
            nn.Conv1d(channels // reduction, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        scale = self.fc(x.mean(dim=2, keepdim=True))  # leak
        return x * scale  # leak


class CausalSqueezeExcite(SqueezeExcite):
    def forward(self, x):
        seen = torch.arange(1, x.size(2) + 1)
        return x * self.fc(x.cumsum(dim=2) / seen)


class Leaky(nn.Module):
    se = SqueezeExcite

    def __init__(self, channels=8):
        super().__init__()
        self.emb = nn.Embedding(25, channels)
        self.conv1, self.conv2 = (nn.Conv1d(channels, channels, 3) for _ in range(2))
        self.se1, self.se2 = self.se(channels), self.se(channels)
        self.cls = nn.Linear(channels, 25)

    def forward(self, input_ids):
        x = self.emb(input_ids).mT
        x = x + self.se1(F.relu(self.conv1(F.pad(x, (2, 0)))))
        x = x + self.se2(F.relu(self.conv2(F.pad(x, (2, 0)))))
        return self.cls(x.mT)


class Mended(Leaky):
    se = CausalSqueezeExcite


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(25, (3, 12), generator=torch.Generator().manual_seed(45))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "se1"
