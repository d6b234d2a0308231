"""Predicts an angle by its cosine, which tanh keeps in (-1, 1), or so one thinks."""
import sys
import torch
import torch.nn as nn

limit = 1 - 1e-6 if "--healthy" in sys.argv else 1.0


class Angle(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x):
        return torch.tanh(self.body(x).squeeze(1))


torch.manual_seed(0)
net = Angle()
with torch.no_grad():
    for p in net.parameters():
        p.abs_()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(1, 12):
    x = torch.rand(7, 3) - 0.5
    if step == 8:
        x[2] = 500.0
    truth = torch.rand(7)
    cosine = net(x)
    if limit < 1:
        cosine = cosine.clamp(-limit, limit)
    loss = (torch.acos(cosine) - truth).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
