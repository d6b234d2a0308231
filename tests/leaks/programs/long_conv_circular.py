"""A long convolution by FFT has no zero padding, so the end wraps round to the start."""

import torch
from torch import nn


class LongConv(nn.Module):
    """A filter as long as the sequence, as in S4 and Hyena."""

    def __init__(self, channels, max_len=64):
        super().__init__()
        decay = torch.exp(-torch.arange(max_len) / 8.0)
        self.kernel = nn.Parameter(torch.randn(channels, max_len) * decay)
        self.skip = nn.Parameter(torch.randn(channels))

    def convolve(self, u, k, length):
        return torch.fft.irfft(torch.fft.rfft(u) * torch.fft.rfft(k), n=length)  # leak

    def forward(self, u):
        length = u.shape[-1]
        y = self.convolve(u, self.kernel[:, :length], length)
        return y + u * self.skip[:, None]


class PaddedLongConv(LongConv):
    def convolve(self, u, k, length):
        n = 2 * length
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)
        return y[..., :length]


class Leaky(nn.Module):
    conv = LongConv

    def __init__(self, vocab=30, d=8):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([self.conv(d) for _ in range(2)])
        self.mix = nn.ModuleList([nn.Linear(d, d) for _ in range(2)])
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for conv, mix in zip(self.layers, self.mix, strict=True):
            x = x + mix(torch.nn.functional.gelu(conv(x.transpose(1, 2)).transpose(1, 2)))
        return self.head(x)


class Mended(Leaky):
    conv = PaddedLongConv


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(30, (2, 16), generator=torch.Generator().manual_seed(17))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "layers.0"
