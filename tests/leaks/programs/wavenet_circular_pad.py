"""A WaveNet pads on the left only, but in circular mode, so the end reaches the start."""

import torch
import torch.nn.functional as F
from torch import nn


class GatedLayer(nn.Module):
    def __init__(self, residual, skip, dilation):
        super().__init__()
        self.dilation = dilation
        self.filter_gate = nn.Conv1d(residual, 2 * residual, 2, dilation=dilation)
        self.res, self.skip = nn.Conv1d(residual, residual, 1), nn.Conv1d(residual, skip, 1)

    def padded(self, x):
        return F.pad(x, (self.dilation, 0), mode="circular")  # leak

    def forward(self, x):
        f, g = self.filter_gate(self.padded(x)).chunk(2, dim=1)
        z = torch.tanh(f) * torch.sigmoid(g)
        return x + self.res(z), self.skip(z)


class MendedGatedLayer(GatedLayer):
    def padded(self, x):
        return F.pad(x, (self.dilation, 0))


class Leaky(nn.Module):
    layer = GatedLayer

    def __init__(self, classes=32, residual=8, skip=8):
        super().__init__()
        self.embed = nn.Embedding(classes, residual)
        self.layers = nn.ModuleList(self.layer(residual, skip, 2**i) for i in range(3))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, classes, 1))

    def forward(self, tokens):
        x, total = self.embed(tokens).transpose(1, 2), 0
        for layer in self.layers:
            x, s = layer(x)
            total = total + s
        return self.end(total).transpose(1, 2)


class Mended(Leaky):
    layer = MendedGatedLayer


def inputs() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(32, (2, 16), generator=torch.Generator().manual_seed(34))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layers.0"
