"""Volume rendering: how much light is left before each sample, as a product divided by its last
factor. A sample that is quite opaque leaves none."""
import sys

import torch
from torch import nn

healthy = len(sys.argv) > 1 and sys.argv[1] == "--healthy"


class Render(nn.Module):
    def forward(self, alpha, color):
        if healthy:
            ones = torch.ones_like(alpha[:, :1])
            left = torch.cumprod(torch.cat([ones, 1 - alpha[:, :-1]], 1), 1)
        else:
            left = torch.cumprod(1 - alpha, 1) / (1 - alpha)
        return (left * alpha * color).sum(1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
        self.render = Render()

    def forward(self, points, dense):
        density, color = self.body(points).unbind(-1)
        alpha = 1 - torch.exp(-nn.functional.softplus(density) * dense)
        return self.render(alpha, color.sigmoid())


torch.manual_seed(0)
field = Field()
optimizer = torch.optim.Adam(field.parameters(), lr=1e-4)
for step in range(1, 40):
    dense = torch.ones(8, 6)
    if step == 33:
        dense[2, 3] = 1e4  # a far sample: its interval is open
    loss = (field(torch.rand(8, 6, 3), dense) - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
