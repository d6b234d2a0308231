import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class PairDataset(Dataset):
    """Pairs of pictures, of one class or of two."""

    def __init__(self, n, seed):
        self.rng = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 5, (n,), generator=g)
        means = torch.randn(5, 1, 12, 12, generator=torch.Generator().manual_seed(7))
        self.images = means[self.labels] + 0.4 * torch.randn(n, 1, 12, 12, generator=g)
        self.by_class = {c: [i for i in range(n) if self.labels[i] == c] for c in range(5)}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        same = self.rng.random() < 0.5
        own = self.labels[index].item()
        other = own if same else self.rng.choice([c for c in range(5) if c != own])
        partner = self.rng.choice(self.by_class[other])
        return self.images[index], self.images[partner], torch.tensor(float(same))


class SiameseNetwork(nn.Module):
    """One trunk for both pictures; the head compares."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))

    def forward_once(self, x):
        return self.trunk(x)

    def forward(self, a, b):
        a, b = self.forward_once(a), self.forward_once(b)
        return self.head(torch.cat((a, b), 1)).squeeze(1), a, b


def contrastive(a, b, same, margin=1.0):
    distance = F.pairwise_distance(a, b)
    return (same * distance.pow(2) + (1 - same) * F.relu(margin - distance).pow(2)).mean()


def main():
    torch.manual_seed(11)
    train_set = DataLoader(PairDataset(320, 1), batch_size=32, shuffle=True, drop_last=True)
    test_set = DataLoader(PairDataset(64, 2), batch_size=64)
    net = SiameseNetwork()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(2):
        net.train()
        running = 0.0
        for a, b, same in train_set:
            optimizer.zero_grad()
            logits, ea, eb = net(a, b)
            loss = criterion(logits, same) + 0.1 * contrastive(ea, eb, same)
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.05)
            optimizer.step()
            running += loss.item()
        net.eval()
        with torch.inference_mode():
            correct = sum(((net(a, b)[0] > 0) == (s > 0)).sum().item() for a, b, s in test_set)
        print(f"epoch {epoch}: loss {running / len(train_set)!r}, correct {correct}/64")

    path = os.environ.get("SAVE_WEIGHTS")
    if path:
        torch.save(net.state_dict(), path)


if __name__ == "__main__":
    main()
