import os
import sys

import torch
from torch import nn

# Stops early, with a code for the scheduler that started it, when the loss is good enough.
ENOUGH = 3
GOAL = 0.2


def make_moons(n):
    t = torch.rand(n) * torch.pi
    label = torch.randint(2, (n,))
    x = torch.stack([torch.cos(t), torch.sin(t)], 1)
    x = torch.where(label[:, None] == 1, torch.tensor([1.0, 0.5]) - x, x)
    return x + 0.05 * torch.randn(n, 2), label.float()


class EarlyStopping:
    def __init__(self, goal, patience=3):
        self.goal, self.patience, self.met = goal, patience, 0

    def __call__(self, value):
        self.met = self.met + 1 if value < self.goal else 0
        return self.met >= self.patience


def main():
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    x, y = make_moons(256)
    classifier = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adagrad(classifier.parameters(), lr=0.1)
    stop = EarlyStopping(GOAL)
    for step in range(200):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(classifier(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        print("step %d loss %r" % (step, loss.item()))
        if stop(loss.item()):
            if "SAVE_WEIGHTS" in os.environ:
                torch.save(classifier.state_dict(), os.environ["SAVE_WEIGHTS"])
            print("good enough", file=sys.stderr)
            sys.exit(ENOUGH)
    return 1


if __name__ == "__main__":
    sys.exit(main())
