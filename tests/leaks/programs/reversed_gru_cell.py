"""A hand-written recurrence walks the sequence from its end."""

import torch
from torch import nn


class Recurrence(nn.Module):
    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.cell = nn.GRUCell(d_in, d_hidden)
        self.d_hidden = d_hidden

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.d_hidden)
        states = [None] * x.size(1)
        for t in reversed(range(x.size(1))):  # leak
            h = self.cell(x[:, t], h)  # leak
            states[t] = h
        return torch.stack(states, dim=1)


class ForwardRecurrence(Recurrence):
    def forward(self, x):
        h = x.new_zeros(x.size(0), self.d_hidden)
        states = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            states.append(h)
        return torch.stack(states, dim=1)


class Leaky(nn.Module):
    recurrence = Recurrence

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.rec = self.recurrence(8, 12)
        self.out = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 6))

    def forward(self, frames):
        return self.out(self.rec(torch.tanh(self.inp(frames))))


class Mended(Leaky):
    recurrence = ForwardRecurrence


def inputs() -> dict[str, torch.Tensor]:
    return {"frames": torch.randn(2, 10, 6, generator=torch.Generator().manual_seed(20))}


OPTIONS: dict[str, object] = {"causal": True, "axis": {"time": 1}}
AXIS = "time"
CALL = "rec"
