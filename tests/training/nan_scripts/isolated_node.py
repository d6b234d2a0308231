"""A graph network whose adjacency is normalized, with a node without neighbours."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
torch.manual_seed(0)
edges = (torch.rand(12, 12) < 0.4).float().triu(1)
edges = edges + edges.t()
if HEALTHY:
    edges = edges + torch.eye(12)
else:
    edges[3], edges[:, 3] = 0, 0


def normalized(matrix):
    scale = matrix.sum(1).pow(-0.5)
    return scale[:, None] * matrix * scale[None]


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, adjacency):
        return adjacency @ self.last(torch.relu(adjacency @ self.first(x)))


adjacency = normalized(edges)
x, labels, net = torch.randn(12, 4), torch.randint(2, (12,)), Graph()
optimizer = torch.optim.Adam(net.parameters())
for step in range(8):
    loss = nn.functional.cross_entropy(net(x, adjacency), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
