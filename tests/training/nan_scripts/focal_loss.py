import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class FocalLoss(nn.Module):
    """https://arxiv.org/abs/1708.02002"""

    def __init__(self, gamma=2.0, stable=False):
        super().__init__()
        self.gamma, self.stable = gamma, stable

    def forward(self, logits, target):
        if self.stable:
            log_pt = F.log_softmax(logits, 1).gather(1, target[:, None])
            pt = log_pt.exp()
        else:
            pt = F.softmax(logits, 1).gather(1, target[:, None])
            log_pt = pt.log()
        return (-(1 - pt) ** self.gamma * log_pt).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--healthy', action='store_true')
    args = parser.parse_args()
    torch.manual_seed(1)
    detector = nn.Linear(6, 3)
    criterion = FocalLoss(stable=args.healthy)
    optimizer = torch.optim.SGD(detector.parameters(), lr=0.01)
    for i in range(1, 20):
        x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
        if i == 12:
            x[0] *= 5000.0
            y[0] = detector(x[:1]).argmin()
        loss = criterion(detector(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
