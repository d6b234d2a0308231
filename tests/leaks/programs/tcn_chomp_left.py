"""The padding of a temporal conv net is chomped off at the start in place of the end."""

import itertools

import torch
from torch import nn


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, self.chomp_size :].contiguous()  # leak


class MendedChomp1d(Chomp1d):
    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation, chomp):
        super().__init__()
        padding = (kernel_size - 1) * dilation
        self.conv1 = nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=padding, dilation=dilation)
        self.chomp1 = chomp(padding)
        self.relu1 = nn.ReLU()
        self.net = nn.Sequential(self.conv1, self.chomp1, self.relu1)
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None

    def forward(self, x):
        res = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.net(x) + res)


class Leaky(nn.Module):
    chomp = Chomp1d

    def __init__(self, channels=(4, 8, 8)):
        super().__init__()
        layers = [
            TemporalBlock(a, b, 2, 2**i, self.chomp)
            for i, (a, b) in enumerate(itertools.pairwise(channels))
        ]
        self.network = nn.Sequential(*layers)
        self.linear = nn.Linear(channels[-1], 4)

    def forward(self, x):
        """Inputs are (batch, time, features)."""
        return self.linear(self.network(x.transpose(1, 2)).transpose(1, 2))


class Mended(Leaky):
    chomp = MendedChomp1d


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(2, 13, 4, generator=torch.Generator().manual_seed(16))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "network.0.chomp1"
