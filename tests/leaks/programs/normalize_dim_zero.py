"""Embeddings are normalised along the batch instead of along their features."""

import torch
import torch.nn.functional as F
from torch import nn


class CosineHead(nn.Module):
    def __init__(self, d, classes, scale=10.0):
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(classes, d))
        self.scale = scale

    def unit(self, z):
        return F.normalize(z, dim=0)  # leak

    def forward(self, z):
        return self.scale * self.unit(z) @ F.normalize(self.prototypes, dim=-1).T


class MendedCosineHead(CosineHead):
    def unit(self, z):
        return F.normalize(z, dim=-1)


class Leaky(nn.Module):
    head_class = CosineHead

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.neck = nn.Linear(16, 8)
        self.head = self.head_class(8, 5)

    def forward(self, x):
        return self.head(self.neck(self.backbone(x)))


class Mended(Leaky):
    head_class = MendedCosineHead


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(51))}


OPTIONS: dict[str, object] = {}
AXIS = "batch"
CALL = "head"
