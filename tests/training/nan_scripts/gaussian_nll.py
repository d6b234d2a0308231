"""Mean and variance from one network; ReLU makes the variance exactly 0."""
import sys
import torch
from torch import nn

healthy = "--healthy" in sys.argv


class MeanVariance(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.mean, self.variance = nn.Linear(16, 1), nn.Linear(16, 1)
        nn.init.constant_(self.variance.bias, 4.0)

    def forward(self, x, hint):
        h = self.trunk(x)
        return self.mean(h), torch.relu(self.variance(h) + hint)


def nll(y, mean, var):
    if healthy:
        var = var.clamp(min=1e-3)
    logs = torch.log(var)
    return 0.5 * (logs + (y - mean) ** 2 / var).mean()


torch.manual_seed(0)
model = MeanVariance()
opt = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(30):
    x = torch.randn(10, 3)
    hint = torch.zeros(10, 1)
    if step == 25:
        hint[4] = -100.0
    loss = nll(x.sum(1, keepdim=True), *model(x, hint))
    opt.zero_grad()
    loss.backward()
    opt.step()
