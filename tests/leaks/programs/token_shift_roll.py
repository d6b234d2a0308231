"""The token shift of an RWKV block is a `roll`, which brings the last token to the first place."""

import torch
import torch.nn.functional as F
from torch import nn


class ChannelMix(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.time_mix_k = nn.Parameter(torch.rand(n_embd))
        self.key = nn.Linear(n_embd, 2 * n_embd, bias=False)
        self.receptance = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(2 * n_embd, n_embd, bias=False)

    def shift(self, x):
        return torch.roll(x, shifts=1, dims=1)  # leak

    def forward(self, x):
        xx = self.shift(x)
        xk = x * self.time_mix_k + xx * (1 - self.time_mix_k)
        k = torch.square(torch.relu(self.key(xk)))
        return torch.sigmoid(self.receptance(x)) * self.value(k)


class MendedChannelMix(ChannelMix):
    def shift(self, x):
        return F.pad(x, (0, 0, 1, -1))


class Leaky(nn.Module):
    mix = ChannelMix

    def __init__(self, vocab=40, n_embd=10):
        super().__init__()
        self.emb = nn.Embedding(vocab, n_embd)
        self.blocks = nn.ModuleList([self.mix(n_embd) for _ in range(3)])
        self.ln_out = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.ln_out(x))


class Mended(Leaky):
    mix = MendedChannelMix


def inputs() -> dict[str, torch.Tensor]:
    return {"idx": torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(30))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "blocks.0"
