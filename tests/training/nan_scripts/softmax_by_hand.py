import argparse
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument('--healthy', action='store_true')
args = parser.parse_args()


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x):
        scores = self.score(x)
        if args.healthy:
            scores = scores - scores.max(1, keepdim=True).values
        weights = torch.exp(scores)
        weights = weights / weights.sum(1, keepdim=True)
        return (weights * x).sum(1)


net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), AttentionPool(12), nn.Linear(12, 1))
torch.manual_seed(1)
with torch.no_grad():
    for p in net.parameters():
        p.uniform_(0.1, 0.3)
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
for step in range(1, 31):
    x = torch.rand(4, 5, 6)
    if step == 23:
        x[2, 4] *= 1000  # a sensor that was not calibrated
    loss = torch.tanh(net(x)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
