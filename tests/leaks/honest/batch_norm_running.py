"""Honest: in eval mode a `BatchNorm` uses its running statistics and mixes nothing."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 4),
        )

    def forward(self, x):
        return self.net(x)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(13))}


OPTIONS: dict[str, object] = {}
