import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Survival(nn.Module):
    """Hazards of discrete time steps: log(1 - hazard) for each that was survived."""

    def __init__(self, times=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, times))

    def forward(self, x):
        return self.net(x)


def loss_of(logits, survived):
    if '--healthy' in sys.argv:
        return -(F.logsigmoid(-logits) * survived).sum(1).mean()
    hazard = torch.sigmoid(logits)
    return -(torch.log1p(-hazard) * survived).sum(1).mean()


model = Survival()
optim = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1, 20):
    x = torch.randn(9, 5)
    survived = (torch.rand(9, 6) < 0.7).float()
    logits = model(x)
    if step == 10:
        logits = logits + 40.0  # a prior that is quite sure
    loss = loss_of(logits, survived)
    optim.zero_grad()
    loss.backward()
    optim.step()
