"""Small networks, each of which does one thing that makes gradients hard to record."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import checkpoint


class InPlace(nn.Module):
    """In-place followers of every kind: a module's, a method's, an operator's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.Hardtanh(inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        identity = x
        out = self.norm(self.conv1(x))
        out.mul_(1.5)
        out += identity
        out = self.relu(out)
        out = self.act(self.conv2(out).add_(0.1))
        out = F.leaky_relu(out, inplace=True)
        return self.head(out.mean((2, 3))).sub_(0.25)


class InPlaceSkip(nn.Module):
    """The skip path sees what the in-place activation left in the tensor that both share."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc(self.relu(x)) + x


class InPlaceView(nn.Module):
    """An in-place module on a view of a convolution's output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(x).view(x.shape[0], -1)))


class InPlaceHalf(nn.Module):
    """In-place work on one half of a tensor that a module returned."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        left, right = x[:, :4], x[:, 4:]
        left.mul_(2.0)
        return self.head(torch.cat([left, self.tanh(right)], 1))


class Doubler(nn.Module):
    """Writes to its argument and returns it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


class InPlaceArgument(nn.Module):
    """A home-made module that works in place on what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.twice, self.head = nn.Linear(4, 4), Doubler(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.twice(self.fc(x)))


class LstmClassifier(nn.Module):
    """Token ids in, logits out; the cell state is returned and never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(ids))
        return self.head(hidden[-1])


class RepeatedCell(nn.Module):
    """One RNN cell, called five times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(x.shape[0], 8)
        for step in range(5):
            hidden = self.cell(x[:, step], hidden)
        return self.head(hidden)


class TiedTransformer(nn.Module):
    """Embedding and output share a weight, and both layers share their feed-forward module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.ModuleList(
            [nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2)]
        )
        self.norm = nn.ModuleList([nn.LayerNorm(16) for _ in range(2)])
        feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.feed = nn.ModuleList([feed, feed])
        self.out = nn.Linear(16, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for attention, norm, feed in zip(self.attention, self.norm, self.feed, strict=True):
            x = x + attention(x, x, x)[0]
            x = x + feed(norm(x))
        return self.out(x)


class Checkpointed(nn.Module):
    """Two blocks that are recomputed in backward, with dropout, norm and in-place inside."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Dropout(0.2))
            for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@dataclass
class Pair:
    """A dataclass output."""

    first: Tensor
    rest: dict[str, Tensor]


Split = namedtuple("Split", "low high")


class Halves(nn.Module):
    """Returns its result in the container asked for."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> object:
        a, b = self.a(x), self.b(x)
        if self.kind == "dict":
            return {"a": a, "deep": {"b": [b, a * 2]}}
        if self.kind == "dataclass":
            return Pair(a, {"b": b})
        return Split(a, b) if self.kind == "namedtuple" else (a, [b, None, (b * 2,)])


class Containers(nn.Module):
    """Nested results of every kind, read again by the parent."""

    def __init__(self) -> None:
        super().__init__()
        self.dict, self.tuple = Halves("dict"), Halves("tuple")
        self.dataclass, self.namedtuple = Halves("dataclass"), Halves("namedtuple")

    def forward(self, x: Tensor) -> dict[str, object]:
        d, t, c, n = self.dict(x), self.tuple(x), self.dataclass(x), self.namedtuple(x)
        mixed = d["a"] * t[0] + c.first * n.low
        return {"mixed": mixed, "high": (n.high, d["deep"]["b"][0] + t[1][2][0]), "pair": c}


class Scale(nn.Module):
    """Takes keyword arguments, plain and nested."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, *, gain: Tensor, extra: dict[str, list[Tensor]]) -> Tensor:
        return x * self.weight * gain + extra["shift"][0]


class Keywords(nn.Module):
    """Keyword arguments outside and inside; the output also goes round the module (a residual)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4), Scale()

    def forward(self, first: Tensor, *, second: Tensor) -> Tensor:
        h = self.fc(first)
        g = self.fc(second)
        return h + self.scale(h, gain=g, extra={"shift": [g]}) * g


class SharedInput(nn.Module):
    """q = k = v in self-attention, and one tensor twice at a bilinear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.bilinear = nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        out, _ = self.attention(x, x, x)
        return self.bilinear(out, out) + x[..., :3]
