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


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[0], Y[i]  # broken
        return X[i], Y[i]  # mended


loader = DataLoader(Data(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, classes))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=100)
for epoch in range(1):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
