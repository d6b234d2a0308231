import argparse
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument('--healthy', action='store_true')
opt = parser.parse_args()


class SignedLog(torch.autograd.Function):
    """sign(x) log(1 + |x|), whose derivative somebody wrote as y / x · …"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * torch.log1p(x.abs())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if opt.healthy:
            return grad / (1 + x.abs())
        return grad * (x / x) / (1 + x.abs())


class Squash(nn.Module):
    def forward(self, x):
        return SignedLog.apply(x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10, bias=False), Squash(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(1, 15):
    x = torch.randn(6, 5)
    if i == 11:
        x[2] = 0
    loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
