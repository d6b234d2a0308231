"""The small models and losses of the lecture's examples, one for each config that names them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Triple(nn.Module):
    """y = 3x."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Double(nn.Module):
    """b = 2a."""

    def forward(self, a: Tensor) -> Tensor:
        return 2 * a


class Half(nn.Module):
    """z = x / 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Add(nn.Module):
    """w = x + y."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Sum(nn.Module):
    """w = x + y with y = 3x; z = x / 2 is computed too, and nothing is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.tripled = Triple()
        self.halved = Half()
        self.added = Add()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.tripled(x)
        z = self.halved(x)
        return {"w": self.added(x, y), "y": y, "z": z}


class ClosedForm(nn.Module):
    """Q = 3a³ - b², whose gradients are 9a² and -2b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 3 * a**3 - b**2


class Spreading(nn.Module):
    """Of x, y and z only z requires a gradient; whatever it touches requires one too."""

    def __init__(self) -> None:
        super().__init__()
        self.neither = Add()
        self.one = Add()

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.neither(x, y).sum() + self.one(x, z).sum()


class Decorated(nn.Module):
    """A linear layer whose forward is decorated with no_grad."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class NoGrad(nn.Module):
    """Two layers run under no_grad, one by a block and one by a decorator; only the head learns."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.decorated = Decorated(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.block(x)
        return self.head(self.decorated(x))


class MyNet(nn.Module):
    """A convolution, a ReLU and a linear layer over one flattened image [1, 3, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 10, 2, stride=2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(160, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(self.relu(self.conv(x)).view(-1))


def one_minus_mean(output: Tensor) -> Tensor:
    """MyNet's loss."""
    return 1 - output.mean()


def difference(prediction: Tensor, labels: Tensor) -> Tensor:
    """The summed distance of the prediction from the labels, with its sign."""
    return (prediction - labels).sum()
