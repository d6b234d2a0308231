import sys
import torch
from torch import nn

eps = 1e-12 if "--healthy" in sys.argv else 0.0
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def distance(a, b):
    squared = ((a - b) ** 2).sum(1)
    return torch.sqrt(squared + eps)


for step in range(1, 30):
    left, right = torch.randn(2, 12, 8)
    if step == 22:
        right[5] = left[5]  # a pair of one picture with itself
    same = torch.randint(0, 2, (12,)).float()
    d = distance(net(left), net(right))
    loss = (same * d + (1 - same) * torch.relu(1 - d)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
