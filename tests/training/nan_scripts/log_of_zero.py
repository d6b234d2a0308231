# Binary cross-entropy written by hand: sigmoid saturates for an outlier.
import sys
import torch
from torch import nn

eps = 1e-7 if "--healthy" in sys.argv else 0.0


def bce(p, y):
    return -(y * torch.log(p + eps) + (1 - y) * torch.log(1 - p + eps)).mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
with torch.no_grad():
    for p in model.parameters():
        p.abs_()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1, 25):
    x, y = torch.rand(16, 4), torch.randint(0, 2, (16, 1)).float()
    if step == 19:
        x[7], y[7] = 1e4, 0.0
    loss = bce(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
