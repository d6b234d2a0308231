"""Small networks for the corners where two difficulties meet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint


class Both(nn.Module):
    """Returns its input beside a result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.fc(x)


class PartlyThrough(nn.Module):
    """One of two outputs is the input, and the input has a third consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.both = nn.Linear(4, 4), Both()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        same, other = self.both(x)
        return same * other + torch.sin(x)


class Square(torch.autograd.Function):
    """A custom function with two outputs, one of which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        signs = x.sign()
        ctx.mark_non_differentiable(signs)
        return x * x, signs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Custom(nn.Module):
    """Calls the custom function."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return Square.apply(x)


class CustomFunction(nn.Module):
    """A custom autograd function inside and its mask outside."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.custom = nn.Linear(4, 4), Custom()

    def forward(self, x: Tensor) -> Tensor:
        squares, signs = self.custom(self.fc(x))
        return squares * signs + squares


class NestedCheckpoints(nn.Module):
    """A checkpoint inside a checkpoint; a layer runs both inside and outside."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.tanh = nn.Tanh()

    def inner(self, x: Tensor) -> Tensor:
        return self.tanh(self.b(x))

    def outer(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a(x) * y
        return checkpoint.checkpoint(self.inner, h, use_reentrant=self.reentrant), h + x

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.a(x)
        left, right = checkpoint.checkpoint(self.outer, x, y, use_reentrant=self.reentrant)
        return self.tanh(left) + right * x


class Packed(nn.Module):
    """A packed sequence through an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.fc(x), torch.tensor([5, 3, 2]), batch_first=True
        )
        out, _ = self.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]


class Weighted(nn.Module):
    """Takes a weight from outside."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight


class ParameterInput(nn.Module):
    """A parameter goes into a module as an input, twice, and is used outside too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.apply_weight = nn.Parameter(torch.randn(4, 4)), Weighted()

    def forward(self, x: Tensor) -> Tensor:
        x = self.apply_weight(x, self.weight)
        return self.apply_weight(x.tanh(), weight=self.weight) + self.weight[0]


class Unbind(nn.Module):
    """Many outputs of one node, and an expanded input."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind(1)


class ManyOutputs(nn.Module):
    """Unbound outputs, one used twice, one never; an expanded tensor enters a module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.unbind, self.head = nn.Linear(4, 4), Unbind(), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b, _, d = self.unbind(self.fc(x))
        return self.head((a * b + a * d)[:, None].expand(-1, 5))


class Encoder(nn.Module):
    """A transformer encoder that also runs under no_grad and in inference mode, in eval."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            self.head(x)
        return self.head(self.encoder(x))


class Dense(nn.Module):
    """Lists that grow, handed to the next module whole; in-place follows the concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Joined(4 * (n + 1)) for n in range(3))
        self.relu = nn.ReLU6(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(self.relu(layer(features)))
        return torch.cat(features, 1)


class Joined(nn.Module):
    """Concatenates a list and maps it back to four channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 4)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.fc(torch.cat(features, 1))


class ViewChain(nn.Module):
    """In-place activations on views: of a view, whose base is then read, and of a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.relu = nn.Linear(4, 6), nn.LeakyReLU(0.2, inplace=True)
        self.act, self.head = nn.ELU(inplace=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.relu(h.view(-1, 2, 3).transpose(1, 2))
        return self.head(h) + self.head(self.act(self.fc(x).t()).t())


class Leaf(nn.Module):
    """The model is given a leaf that needs a gradient, returns it, and works with it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.identity = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.fc(self.identity(x)) * x
