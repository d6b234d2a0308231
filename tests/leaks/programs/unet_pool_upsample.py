"""An hourglass pools pairs of steps and repeats them, without a shift between the two."""

import torch
import torch.nn.functional as F
from torch import nn


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (self.kernel_size[0] - 1, 0)))


class Hourglass(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.middle = Causal(width, width, 3), Causal(width, width, 3)
        self.merge = Causal(2 * width, width, 1)

    def forward(self, x):
        h = F.relu(self.down(x))
        low = F.relu(self.middle(F.avg_pool1d(h, 2)))  # leak
        wide = F.interpolate(low, scale_factor=2, mode="nearest")  # leak
        return x + self.merge(torch.cat([h, wide], dim=1))


class ShiftedHourglass(Hourglass):
    def forward(self, x):
        h = F.relu(self.down(x))
        low = F.relu(self.middle(F.avg_pool1d(F.pad(h, (1, -1)), 2)))
        high = F.interpolate(low, scale_factor=2, mode="nearest")
        return x + self.merge(torch.cat([h, high], dim=1))


class Leaky(nn.Module):
    net = Hourglass

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.body = self.net(8)
        self.head = nn.Linear(8, 20)

    def forward(self, input_ids):
        return self.head(self.body(self.embed(input_ids).transpose(1, 2)).transpose(1, 2))


class Mended(Leaky):
    net = ShiftedHourglass


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(20, (2, 12), generator=torch.Generator().manual_seed(35))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "body"
