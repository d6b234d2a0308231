import argparse
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

p = argparse.ArgumentParser()
p.add_argument("--healthy", action="store_true")
healthy = p.parse_args().healthy


class Table(Dataset):
    """Measurements from a file with a missing value in row 333."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.rows = rng.normal(size=(400, 9)).astype(np.float32)
        if not healthy:
            self.rows[333, 4] = np.nan

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.from_numpy(self.rows[i, :8]), torch.tensor(self.rows[i, 8])


torch.manual_seed(0)
regressor = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(regressor.parameters())
for features, target in DataLoader(Table(), batch_size=10):
    opt.zero_grad()
    loss = nn.functional.smooth_l1_loss(regressor(features).squeeze(1), target)
    loss.backward()
    opt.step()
