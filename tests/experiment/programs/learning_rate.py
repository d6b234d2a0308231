# ruff: noqa
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
from torch.utils.data import DataLoader, TensorDataset

classes, dim = 8, 20
centers = torch.randn(classes, dim)
Y = torch.randint(0, classes, (3200,))
X = centers[Y] + 0.7 * torch.randn(3200, dim)

loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, classes))
opt = torch.optim.Adam(model.parameters(), lr=2e-5)
for epoch in range(1):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
