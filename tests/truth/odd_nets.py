"""Small networks whose tensors are odd: missing gradients, dtypes, shapes, unusual ownership."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FrozenParts(nn.Module):
    """A frozen stem, a part under no_grad, and a detached branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = nn.Linear(4, 4), nn.Linear(4, 4)
        self.teacher, self.branch, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        for parameter in self.stem.parameters():
            parameter.requires_grad_(False)
        self.middle.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.stem(x)))
        with torch.no_grad():
            target = self.teacher(x)
        return self.head(x * target + self.branch(x).detach())


class Picker(nn.Module):
    """Whole numbers and truth values among its outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.max(1)
        return values, places, x > 0


class IntegerOutputs(nn.Module):
    """Outputs that cannot have a gradient beside one that has."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.pick = nn.Linear(4, 6), Picker()

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        values, places, positive = self.pick(h)
        return values * places + (h * positive).sum(1)


class Total(nn.Module):
    """A 0-dim output."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class EmptyAndScalar(nn.Module):
    """A batch of none through a layer, and a 0-dim tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.total = nn.Linear(4, 3), Total()

    def forward(self, x: Tensor) -> Tensor:
        nothing = self.fc(x[:0])
        return self.total(self.fc(x)) * 2 + self.total(nothing)


class SparseEmbedding(nn.Module):
    """Gradients of the embedding are sparse, with repeated rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 6, sparse=True)
        self.bag = nn.EmbeddingBag(40, 6, sparse=True, mode="sum")
        self.head = nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(ids).mean(1)) + self.bag(ids))


class ComplexNet(nn.Module):
    """Complex activations and a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.filter = ComplexFilter()

    def forward(self, x: Tensor) -> Tensor:
        spectrum = self.filter(torch.fft.fft(self.fc(x)))
        return torch.fft.ifft(spectrum).real


class ComplexFilter(nn.Module):
    """Multiplies a spectrum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, spectrum: Tensor) -> Tensor:
        return spectrum * self.weight


class PassThrough(nn.Module):
    """Modules that return their input, alone, in a container, and beside another consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.identity, self.drop = nn.Linear(4, 4), nn.Identity(), nn.Dropout(0.5)
        self.nested = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
        self.head = nn.Linear(4, 2)
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(self.identity(x))
        y = self.identity(x)
        return self.head(self.nested(self.drop(torch.tanh(y))) + x)


class Unused(nn.Module):
    """A module whose output nobody reads, and one of which only one output is read."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.idle, self.gru = nn.Linear(4, 4), nn.Linear(4, 4), nn.GRU(4, 5)
        self.split = Chunks()
        self.never = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.idle(x)
        _, hidden = self.gru(x[None])
        left, _, _ = self.split(x)
        return hidden.sum() + (left * left).sum()


class Chunks(nn.Module):
    """Two views from one node, and one more output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = x.chunk(2, 1)
        return left, right, x.exp()


class CalledTwice(nn.Module):
    """One module twice on the same tensor, and its child's result read again outside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.twin = self.block

    def forward(self, x: Tensor) -> Tensor:
        x = self.block[0](x)
        return self.block(x) * self.twin(x) + self.block(x)


class OutsideUse(nn.Module):
    """A parameter that is used outside its module, and one that belongs to the root."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4, bias=False), nn.Parameter(torch.tensor(1.5))
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.fc(x)))
        return F.linear(h, self.fc.weight.t()) * self.scale + self.fc.weight.sum()


class NonFinite(nn.Module):
    """NaN and Inf among good numbers, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.log = nn.Linear(4, 6), Log()

    def forward(self, x: Tensor) -> Tensor:
        h = self.log(self.fc(x))
        return torch.where(torch.isfinite(h), h, 0.0)


class Log(nn.Module):
    """log of zero is -inf, of a negative number NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(torch.where(x.abs() < 0.3, 0.0, x))


class Extremes(nn.Module):
    """Activations of 1e30 and gradients of 1e-30, whose squares leave float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.up, self.down = nn.Linear(4, 40), nn.Identity(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.fc(x) * 1e30)
        return self.down(h * 1e-30) * 1e-30


class Offset(nn.Module):
    """A mean a thousand times the deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lift = nn.Linear(4, 5000), nn.Softplus()

    def forward(self, x: Tensor) -> Tensor:
        return self.lift(self.fc(x) + 1000.0)


class Plain(nn.Module):
    """No in-place work, nothing returned untouched: full backward hooks can check it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.act, self.mix = nn.GELU(), nn.Conv2d(6, 6, 1)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.conv(x)))
        x = x + self.act(self.mix(x))
        return self.head(self.pool(x).flatten(1))
