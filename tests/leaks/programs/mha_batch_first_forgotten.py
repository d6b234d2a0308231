"""`nn.MultiheadAttention` without `batch_first=True` attends over the samples of the batch."""

import torch
from torch import nn


class Layer(nn.Module):
    batch_first = False

    def __init__(self, dim=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn = nn.MultiheadAttention(dim, 2, batch_first=self.batch_first)
        self.ff = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def attend(self, h):
        return self.self_attn(h, h, h)[0]  # leak

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.ff(self.norm2(x))


class MendedLayer(Layer):
    batch_first = True

    def attend(self, h):
        out, _ = self.self_attn(h, h, h)
        return out


class Leaky(nn.Module):
    layer = Layer

    def __init__(self, features=6, classes=4):
        super().__init__()
        self.embed = nn.Linear(features, 16)
        self.pos = nn.Parameter(torch.randn(1, 32, 16) * 0.1)
        self.layers = nn.Sequential(self.layer(), self.layer())
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        h = self.layers(self.embed(x) + self.pos[:, : x.size(1)])
        return self.head(h.mean(dim=1))


class Mended(Leaky):
    layer = MendedLayer


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 10, 6, generator=torch.Generator().manual_seed(47))}


OPTIONS: dict[str, object] = {}
AXIS = "batch"
CALL = "layers.0.self_attn"
