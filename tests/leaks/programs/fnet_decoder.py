"""FNet's Fourier mixing, made for encoders, is used in a decoder."""

import torch
from torch import nn


class FourierMixing(nn.Module):
    def forward(self, x):
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real  # leak


class CausalMixing(nn.Module):
    """A running mean and the spectrum of the features alone."""

    def forward(self, x):
        spectrum = torch.fft.fft(x, dim=-1).real
        return spectrum.cumsum(1) / torch.arange(1, x.shape[1] + 1)[None, :, None]


class FNetBlock(nn.Module):
    def __init__(self, mixing, d=16):
        super().__init__()
        self.mixing = mixing()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = self.norm1(x + self.mixing(x))
        return self.norm2(x + self.ff(x))


class Leaky(nn.Module):
    def __init__(self, mixing=FourierMixing):
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.blocks = nn.Sequential(FNetBlock(mixing), FNetBlock(mixing))
        self.decode = nn.Linear(16, 24)

    def forward(self, input_ids):
        return {"logits": self.decode(self.blocks(self.embed(input_ids)))}


class Mended(Leaky):
    def __init__(self):
        super().__init__(CausalMixing)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(24, (2, 8), generator=torch.Generator().manual_seed(18))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "blocks.0.mixing"
