"""To walk over time first, the input is viewed as (time, batch, d) in place of transposed."""

import torch
from torch import nn


class ExponentialAverage(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(d))

    def average(self, steps):
        h, out = torch.zeros_like(steps[0]), []
        keep = torch.sigmoid(self.decay)
        for step in steps:
            h = keep * h + (1 - keep) * step
            out.append(h)
        return torch.stack(out)

    def forward(self, x):
        b, t, d = x.shape
        steps = x.view(t, b, d)  # leak
        return self.average(steps).view(b, t, d)  # leak


class MendedExponentialAverage(ExponentialAverage):
    def forward(self, x):
        return self.average(x.transpose(0, 1)).transpose(0, 1)


class Leaky(nn.Module):
    ema = ExponentialAverage

    def __init__(self, vocab=20, d=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.smooth = self.ema(d)
        self.net = nn.Sequential(nn.Linear(2 * d, 16), nn.GELU(), nn.Linear(16, vocab))

    def forward(self, input_ids):
        x = self.emb(input_ids)
        return self.net(torch.cat([x, self.smooth(x)], dim=-1))


class Mended(Leaky):
    ema = MendedExponentialAverage


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(20, (3, 8), generator=torch.Generator().manual_seed(46))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "batch"
ALSO = {"time"}
CALL = "smooth"
