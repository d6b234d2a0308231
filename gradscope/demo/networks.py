"""Two bundled networks.

They are equal, except that the lecture's network has a ReLU on its logits.
"""

from __future__ import annotations

from torch import Tensor, nn


class SimpleNet(nn.Module):
    """Maps digits [N, 1, 28, 28] to logits [N, 10].

    Every operation is a module, so each has a row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(320, 50)
        self.relu3 = nn.ReLU()
        self.out = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.relu3(self.fc1(x.view(-1, 320)))
        logits: Tensor = self.out(x)
        return logits


class LectureNet(SimpleNet):
    """SimpleNet with a ReLU on the logits: if a class's logit falls below zero, it stops
    learning."""

    def __init__(self) -> None:
        super().__init__()
        self.out_relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        clipped: Tensor = self.out_relu(super().forward(x))
        return clipped
