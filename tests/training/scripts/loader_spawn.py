import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Seen once by the script and once by each worker: spawn imports this file again.
print(f"importing as {'the script' if __name__ == '__main__' else __name__}", flush=True)


class Squares(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.rand(2, generator=g) * 2 - 1
        return x, (x.square().sum().sqrt() < 0.7).float()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Bilinear(2, 2, 16)
        self.b = nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.celu(self.a(x, x)))[:, 0]


def main():
    torch.manual_seed(9)
    loader = DataLoader(Squares(120), batch_size=20, num_workers=1, multiprocessing_context='spawn')
    model = Model()
    opt = torch.optim.ASGD(model.parameters(), lr=0.5)
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.soft_margin_loss(model(x), 2 * y - 1)
        loss.backward()
        opt.step()
        print(loss.item())
    print(sys.argv)
    path = os.environ.get('SAVE_WEIGHTS')
    if path:
        torch.save(model.state_dict(), path)


if __name__ == '__main__':
    main()
