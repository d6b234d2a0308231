import sys
import torch
from torch import nn

shift = 1e-6 if "--healthy" in sys.argv else 0.0


class Speed(nn.Module):
    """The length of the velocity that the network predicts."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16, bias=False), nn.Tanh(), nn.Linear(16, 2, bias=False))

    def forward(self, x):
        u, v = self.net(x).unbind(-1)
        return torch.hypot(u, v + shift)


torch.manual_seed(0)
speed = Speed()
optimizer = torch.optim.Adam(speed.parameters(), lr=1e-4)
for step in range(1, 50):
    x, target = torch.randn(8, 4), torch.rand(8)
    if step == 44:
        x[6] = 0.0
    loss = nn.functional.l1_loss(speed(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
