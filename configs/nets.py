"""Small networks, each with one construct that makes gradients hard to follow."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class SequenceLabeler(nn.Module):
    """Token ids [N, T] → classes [N, 3], by the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.head(hidden[-1])


class RepeatedCell(nn.Module):
    """One RNN cell called once per step: the same weights in five calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(6, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, steps: Tensor) -> Tensor:
        state = torch.zeros(steps.shape[1], 8)
        for step in steps:
            state = self.cell(step, state)
        return self.head(state)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, features)
        self.outer = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


class Checkpointed(nn.Module):
    """Two residual blocks whose activations are thrown away and computed again in backward."""

    def __init__(self, use_reentrant: bool = False) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.stem = nn.Linear(5, 12)
        self.blocks = nn.ModuleList([Block(12), Block(12)])
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


class InPlace(nn.Module):
    """What a layer returns is overwritten by what follows: by a ReLU, a sum, a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.relu2 = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(x))
        y += x
        y = self.relu2(y)
        return self.head(y.mean((2, 3))).mul_(0.5)


class TiedTransformer(nn.Module):
    """A one-layer language model whose output weights are its embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(16, 40, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.output(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))


class Pair(nn.Module):
    """Two inputs by keyword, two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 4)
        self.right = nn.Linear(5, 4)

    def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        joined = self.left(left) * self.right(right)
        return {"score": joined.sum(1), "joined": joined}


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of each position's prediction of the token after it."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Detached(nn.Module):
    """Features that are detached and then used: the stem before them learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x).relu().detach()
        return self.head(self.body(features).relu() + features)
