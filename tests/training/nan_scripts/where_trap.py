# where() hides log(0) in forward; in backward 0 times infinity comes out of it.
import sys
import torch
from torch import nn

torch.manual_seed(0)


class LogScale(nn.Module):
    def forward(self, x):
        if "--healthy" in sys.argv:
            safe = torch.where(x > 0, x, torch.ones_like(x))
            return torch.where(x > 0, torch.log(safe), torch.zeros_like(x))
        return torch.where(x > 0, torch.log(x), torch.zeros_like(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 12, bias=False)
        self.log = LogScale()
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.log(self.inp(x).abs()))


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(1, 20):
    x = torch.randn(5, 6)
    if step == 16:
        x[1] = 0
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
