# Normalizes by the statistics of the batch; the last batch of the epoch has one sample.
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Standardize(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-5)


def build():
    return nn.Sequential(nn.Linear(7, 14), Standardize(), nn.Tanh(), nn.Linear(14, 1))


torch.manual_seed(2)
x = torch.randn(97, 7)
y = x[:, :1] * 0.5
loader = DataLoader(TensorDataset(x, y), batch_size=8, drop_last="--healthy" in sys.argv)
model = build()
criterion = nn.L1Loss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
