import sys
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 8, bias=False))

    def forward(self, x):
        return self.layers(x)


def cosine(a, b, eps):
    dot = (a * b).sum(-1)
    lengths = torch.sqrt((a * a).sum(-1) + eps) * torch.sqrt((b * b).sum(-1) + eps)
    return dot / lengths


eps = 1e-8 if "--healthy" in sys.argv else 0.0
torch.manual_seed(0)
encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-4)
for step in range(1, 20):
    views = torch.randn(2, 6, 10)
    if step == 7:
        views[1, 2] = 0.0  # augmented away
    loss = (1 - cosine(encoder(views[0]), encoder(views[1]), eps)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
