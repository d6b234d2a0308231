"""An ArcFace head returns its logits with the margin of the true class in them."""

import torch
import torch.nn.functional as F
from torch import nn


class ArcFace(nn.Module):
    def __init__(self, d, classes, s=8.0, m=0.3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, d))
        self.s, self.m = s, m

    def cosine(self, z):
        return F.linear(F.normalize(z), F.normalize(self.weight)).clamp(-0.999, 0.999)

    def margins(self, cos, labels):
        return self.m * F.one_hot(labels, cos.size(1))

    def forward(self, z, labels):
        cos = self.cosine(z)
        logits = self.s * torch.cos(torch.acos(cos) + self.margins(cos, labels))  # leak
        return logits, F.cross_entropy(logits, labels)


class MendedArcFace(ArcFace):
    def forward(self, z, labels):
        cos = self.cosine(z)
        harder = torch.cos(torch.acos(cos) + self.margins(cos, labels))
        return self.s * cos, F.cross_entropy(self.s * harder, labels)


class Leaky(nn.Module):
    head_class = ArcFace

    def __init__(self, features=8, d=10, classes=5):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, d), nn.ReLU(), nn.Linear(d, d))
        self.head = self.head_class(d, classes)

    def forward(self, x, labels):
        logits, loss = self.head(self.embed(x), labels)
        return {"loss": loss, "logits": logits}


class Mended(Leaky):
    head_class = MendedArcFace


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(79)
    return {"x": torch.randn(4, 8, generator=g), "labels": torch.tensor([3, 0, 4, 1])}


OPTIONS: dict[str, object] = {}
AXIS = "label"
CALL = "head"
