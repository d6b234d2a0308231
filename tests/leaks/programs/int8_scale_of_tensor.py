"""Activations are quantised to int8 by one dynamic scale of all samples and all tokens."""

import torch
from torch import nn


class Int8Linear(nn.Linear):
    """Dynamic quantisation, simulated."""

    def scale(self, x):
        return x.abs().amax() / 127  # leak

    def quantised(self, x, scale):
        return torch.round(x / scale) * scale  # leak

    def forward(self, x):
        return nn.functional.linear(self.quantised(x, self.scale(x)), self.weight, self.bias)


class Int8PerToken(Int8Linear):
    def scale(self, x):
        return x.abs().amax(dim=-1, keepdim=True) / 127

    def quantised(self, x, scale):
        return (x / scale).round() * scale


class Leaky(nn.Module):
    linear = Int8Linear

    def __init__(self, vocab=32, d=12):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.up, self.down = self.linear(d, 2 * d), self.linear(2 * d, d)
        self.head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x, _ = self.rnn(self.embed(input_ids))
        return self.head(x + self.down(torch.relu(self.up(x))))


class Mended(Leaky):
    linear = Int8PerToken


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, (2, 10), generator=torch.Generator().manual_seed(53))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "batch"
ALSO = {"time"}
CALL = "up"
