"""Models that fail where the lecture says that they do."""

from torch import Tensor, nn


class Triple(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Mismatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        y.add_(1)
        return y
