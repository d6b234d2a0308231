# ruff: noqa
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)

X = torch.randn(4000, 10)
teacher = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
with torch.no_grad():
    Y = (6 * teacher(X)).argmax(1)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)  # broken
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)  # mended
for step in range(100):
    i = torch.randint(0, 4000, (32,))
    loss = F.cross_entropy(model(X[i]), Y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
