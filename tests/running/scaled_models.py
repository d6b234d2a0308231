"""Networks of any width, in standard parametrisation and, by hand, in µP (arXiv:2203.03466).

A coordinate check imports a copy of this file: nothing of gradscope or of the tests is needed.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

#: The width at which both parametrisations have the same learning rates.
BASE = 128


class Scaled(nn.Module):
    """``hidden`` weights have a fan-in that grows; the output is divided by the width in µP."""

    def __init__(self, width: int, mup: bool):
        super().__init__()
        self.width, self.mup = width, mup

    def initialise(self, hidden: list[nn.Parameter]) -> None:
        self.hidden = [id(p) for p in hidden]
        for p in self.parameters():
            nn.init.normal_(p, std=(2 / p[0].numel()) ** 0.5)
        nn.init.normal_(self.head.weight, std=1.0 if self.mup else self.width**-0.5)

    def out(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x / self.width if self.mup else x)


class MLP(Scaled):
    def __init__(self, width: int, mup: bool = False):
        super().__init__(width, mup)
        self.fc1 = nn.Linear(8, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)
        self.fc3 = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 4, bias=False)
        self.initialise([self.fc2.weight, self.fc3.weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.out(F.relu(self.fc3(x)))


class CNN(Scaled):
    def __init__(self, width: int, mup: bool = False):
        super().__init__(width, mup)
        self.conv1 = nn.Conv2d(3, width, 3, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, bias=False)
        self.head = nn.Linear(width, 4, bias=False)
        self.initialise([self.conv2.weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.out(x.mean((2, 3)))


class Transformer(Scaled):
    """A block with four heads: the width is that of the residual stream, and d of a head grows."""

    def __init__(self, width: int, mup: bool = False):
        super().__init__(width, mup)
        self.embedding = nn.Embedding(8, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, 4, bias=False)
        grows = [self.query, self.key, self.value, self.project, self.up, self.down]
        self.initialise([linear.weight for linear in grows])
        nn.init.normal_(self.embedding.weight)
        if mup:  # appendix D.2: attention begins uniform at every width
            nn.init.zeros_(self.query.weight)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (self.width,))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        n, t, _ = x.shape
        q, k, v = (
            linear(self.norm(x)).view(n, t, 4, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        d = q.shape[-1]
        scores = q @ k.mT / (d * (4 / BASE) ** 0.5 if self.mup else d**0.5)
        x = x + self.project((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, -1))
        x = x + self.down(F.relu(self.up(self.norm(x))))
        return self.out(self.norm(x)[:, -1])


def adam(model: Scaled, lr: float) -> torch.optim.Adam:
    """In µP the learning rate of hidden weights is ∝ 1/width."""
    hidden = [p for p in model.parameters() if id(p) in model.hidden]
    rest = [p for p in model.parameters() if id(p) not in model.hidden]
    factor = BASE / model.width if model.mup else 1.0
    # Gradients are small at a large width: epsilon must be smaller.
    groups = [{"params": rest, "lr": lr}, {"params": hidden, "lr": lr * factor}]
    return torch.optim.Adam(groups, eps=1e-20)
