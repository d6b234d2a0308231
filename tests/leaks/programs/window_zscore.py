"""Each window is standardised by the mean and deviation of all its steps, later ones included."""

import torch
from torch import nn


class Leaky(nn.Module):
    """Next-step forecasts of several series."""

    def __init__(self, n_series=4, hidden=16):
        super().__init__()
        self.lstm = nn.LSTM(n_series, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, n_series)

    def standardise(self, x):
        mean, std = x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True)  # leak
        return (x - mean) / (std + 1e-5), mean, std  # leak

    def forward(self, x):
        z, mean, std = self.standardise(x)
        h, _ = self.lstm(z)
        return self.head(h) * std + mean


class Mended(Leaky):
    """Statistics of what has been seen so far."""

    def standardise(self, x):
        n = torch.arange(1, x.size(1) + 1, dtype=x.dtype).view(1, -1, 1)
        mean = x.cumsum(1) / n
        var = (x.square().cumsum(1) / n - mean.square()).clamp(min=1e-3)
        return (x - mean) / var.sqrt(), mean, var.sqrt()


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(3, 14, 4, generator=torch.Generator().manual_seed(14))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = ""
