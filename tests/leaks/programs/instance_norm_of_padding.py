"""A masked acoustic model normalises each channel over all frames, the padded ones included."""

import torch
from torch import nn


class ConvModule(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.depthwise = nn.Conv1d(d, d, 3, padding=1, groups=d)
        self.norm = nn.InstanceNorm1d(d, affine=True)
        self.pointwise = nn.Conv1d(d, d, 1)

    def normalised(self, y):
        return self.norm(y)  # leak

    def forward(self, x, attention_mask):
        keep = attention_mask[:, None]
        y = self.depthwise(x.mT * keep) * keep
        return x + self.pointwise(nn.functional.silu(self.normalised(y)) * keep).mT


class FrameNormModule(ConvModule):
    def __init__(self, d):
        super().__init__(d)
        self.norm = nn.LayerNorm(d)

    def normalised(self, y):
        return self.norm(y.mT).mT


class Leaky(nn.Module):
    module = ConvModule

    def __init__(self, n_mels=5, d=8, tokens=7):
        super().__init__()
        self.proj = nn.Linear(n_mels, d)
        self.convs = nn.ModuleList([self.module(d) for _ in range(2)])
        self.ctc = nn.Linear(d, tokens)

    def forward(self, input_values, attention_mask):
        x = self.proj(input_values)
        for conv in self.convs:
            x = conv(x, attention_mask)
        return self.ctc(x)


class Mended(Leaky):
    module = FrameNormModule


def inputs() -> dict[str, torch.Tensor]:
    mask = (torch.arange(10) < torch.tensor([[10], [6]])).long()
    x = torch.randn(2, 10, 5, generator=torch.Generator().manual_seed(71))
    return {"input_values": x * mask[..., None], "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = "convs.0.norm"
