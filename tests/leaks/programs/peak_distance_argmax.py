"""Each step is told its distance to the peak of the window, found by an `argmax` over all steps."""

import torch
from torch import nn


class PeakFeature(nn.Module):
    """Distance in steps to the highest value, through a small embedding."""

    def __init__(self, d, max_len=32):
        super().__init__()
        self.max_len = max_len
        self.table = nn.Embedding(2 * max_len, d)

    def forward(self, x):
        peak = x[..., 0].argmax(dim=1, keepdim=True)  # leak
        away = torch.arange(x.size(1)) - peak  # leak
        return self.table(away + self.max_len)


class RunningPeakFeature(PeakFeature):
    def forward(self, x):
        _, highest = x[..., 0].cummax(dim=1)
        since = torch.arange(x.size(1)) - highest
        return self.table(since + self.max_len)


class Leaky(nn.Module):
    feature = PeakFeature

    def __init__(self, channels=3, d=10):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(channels, d)
        self.peak = self.feature(d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, channels)

    def forward(self, x):
        h, _ = self.gru(self.inp(x) + self.peak(x))
        return self.out(h)


class Mended(Leaky):
    feature = RunningPeakFeature


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(4, 12, 3, generator=torch.Generator().manual_seed(42))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "peak"
