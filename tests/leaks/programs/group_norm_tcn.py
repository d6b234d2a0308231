"""`GroupNorm` on (batch, channels, time) takes its statistics over all of time."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class TokenNorm(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class ResBlock(nn.Module):
    def __init__(self, ch, dilation, norm):
        super().__init__()
        self.conv = CausalConv(ch, ch, 3, dilation=dilation)
        self.norm = norm(2, ch)
        self.act = nn.PReLU()
        self.mix = nn.Conv1d(ch, ch, 1)


class GlobalBlock(ResBlock):
    def forward(self, x):
        h = self.norm(self.conv(x))  # leak
        return x + self.mix(self.act(h))


class LocalBlock(ResBlock):
    def forward(self, x):
        return x + self.mix(self.act(self.norm(self.conv(x))))


class Leaky(nn.Module):
    def __init__(self, block=GlobalBlock, norm=nn.GroupNorm):
        super().__init__()
        self.encoder = CausalConv(1, 8, 4)
        self.separator = nn.Sequential(*(block(8, 2**i, norm) for i in range(3)))
        self.decoder = nn.Conv1d(8, 1, 1)

    def forward(self, x):
        return self.decoder(self.separator(self.encoder(x)))


class Mended(Leaky):
    def __init__(self):
        super().__init__(LocalBlock, TokenNorm)


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(13))}


OPTIONS: dict[str, object] = {"causal": True, "axis": {"time": 2}}
AXIS = "time"
CALL = "separator.0.norm"
