# k-fold cross validation: a new model, optimizer and scheduler in every fold.
import os

import numpy as np
import torch
from torch import nn

SEED = 42
K = 4
EPOCHS = 2


class Regressor(nn.Module):
    def __init__(self, features, hidden=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden),
            nn.SiLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def fit(X, y, epochs=EPOCHS, batch=64):
    model = Regressor(X.shape[1])
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    for epoch in range(epochs):
        order = torch.randperm(len(X))
        for idx in order.split(batch):
            loss = nn.functional.huber_loss(model(X[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    return model, loss.item()


def score(model, X, y):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(X), y).item()


rng = np.random.RandomState(SEED)
X = rng.randn(440, 10)
y = X @ rng.randn(10) + np.sin(X[:, 0])
X = torch.tensor(X / X.std(0), dtype=torch.float32)
y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)

scores, weights = [], []
parts = np.array_split(rng.permutation(len(X)), K)
for fold, test_idx in enumerate(parts):
    train_idx = np.concatenate(parts[:fold] + parts[fold + 1:])
    torch.manual_seed(SEED + fold)
    model, last = fit(X[train_idx], y[train_idx])
    scores.append(score(model, X[test_idx], y[test_idx]))
    weights.append(model.state_dict())
    print(f"fold {fold}: last loss {last!r}, test {scores[-1]!r}")
    del model

print("mean", np.mean(scores).item(), "std", np.std(scores).item())
if "SAVE_WEIGHTS" in os.environ:
    torch.save(weights, os.environ["SAVE_WEIGHTS"])
