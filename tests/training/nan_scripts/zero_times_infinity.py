"""A repulsion between points of different clusters: 1 / distance, masked afterwards."""
import sys
import torch
from torch import nn

healthy = "--healthy" in sys.argv
torch.manual_seed(0)
embed = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(embed.parameters(), lr=1e-3)


def repulsion(z, cluster):
    first, second = torch.triu_indices(len(z), len(z), 1)
    squared = (z[first] - z[second]).square().sum(1)
    apart = (cluster[first] != cluster[second]).float()
    if healthy:
        squared = squared + 1e-4
    force = 1.0 / squared
    return (force * apart).clamp(max=100).mean()


for step in range(1, 40):
    x = torch.randn(10, 4)
    cluster = torch.arange(10) % 3
    if step == 36:
        x[3] = x[0]  # a duplicate, in one cluster
    z = embed(x)
    loss = repulsion(z, cluster) + z.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
