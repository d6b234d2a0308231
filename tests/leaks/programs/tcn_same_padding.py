"""A temporal conv net pads on both sides to keep the length."""

import torch
import torch.nn.functional as F
from torch import nn


class SameConv(nn.Module):
    def __init__(self, cin, cout, k=3, dilation=1):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, k, dilation=dilation, padding=dilation * (k - 1) // 2)

    def forward(self, x):
        return F.relu(self.conv(x))  # leak


class LeftConv(nn.Module):
    def __init__(self, cin, cout, k=3, dilation=1):
        super().__init__()
        self.left = dilation * (k - 1)
        self.conv = nn.Conv1d(cin, cout, k, dilation=dilation)

    def forward(self, x):
        return F.relu(self.conv(F.pad(x, (self.left, 0))))


class Leaky(nn.Module):
    conv = SameConv

    def __init__(self, vocab=32, width=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.tcn = nn.Sequential(*[self.conv(width, width, dilation=2**i) for i in range(3)])
        self.fc = nn.Linear(width, vocab)

    def forward(self, input_ids):
        y = self.tcn(self.emb(input_ids).transpose(1, 2))
        return self.fc(y.transpose(1, 2))


class Mended(Leaky):
    conv = LeftConv


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, (2, 16), generator=torch.Generator().manual_seed(15))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "tcn.0.conv"
