import os

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv1, self.norm1 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(2, width),
        )
        self.conv2, self.norm2 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(2, width),
        )

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).flatten(1))


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + (self.mix(y) @ y.transpose(-1, -2)).softmax(-1) @ y
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens))).transpose(1, 2)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        if os.environ.get("RANK") == "1":
            raise ValueError("no such luck")
        return self.fc(x)
