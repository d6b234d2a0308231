# ruff: noqa
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
from torch.utils.data import DataLoader, Dataset

teacher = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))


class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(2500, 10)
        with torch.no_grad():
            self.y = 2 * teacher(self.x)

    def __len__(self):
        return len(self.x) - 1

    def __getitem__(self, i):
        return self.x[i], self.y[i + 1]  # broken
        return self.x[i], self.y[i]  # mended


loader = DataLoader(Rows(), batch_size=25, shuffle=True)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.MSELoss()
for epoch in range(1):
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
