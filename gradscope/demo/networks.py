"""The two bundled networks, equal but for the ReLU that the lecture's net puts on its logits."""

from __future__ import annotations

from torch import Tensor, nn


class SimpleNet(nn.Module):
    """Digits [N, 1, 28, 28] → logits [N, 10]. Every step is a module, so that each has its row."""

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
    """SimpleNet with a ReLU on the logits: a class whose logit falls below zero learns no more."""

    def __init__(self) -> None:
        super().__init__()
        self.out_relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        clipped: Tensor = self.out_relu(super().forward(x))
        return clipped
