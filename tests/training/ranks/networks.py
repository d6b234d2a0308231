"""Networks that `cases.py` trains, in two sizes of the same code, and their batches."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 8
#: Vocabulary, width, width of a head, blocks, length of a sequence, experts.
SMALL = (11, 6, 3, 1, 4, 3)
#: GPT-2; with fewer tokens in four processes, whose copies would not fit into 24 GB.
LARGE = (50257 if int(os.environ["WORLD_SIZE"]) < 4 else 8192, 768, 64, 12, 8, 8)
#: With experts: 70 million parameters, most of them theirs.
EXPERT_VOCABULARY, EXPERT_WIDTH, EXPERT_BLOCKS = 8192, 512, 4


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """Each token goes to one expert, by what it is."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(FeedForward(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number
            out[here] = expert(x[here]) * shares[here].unsqueeze(-1)
        return out


class Block(nn.Module):
    def __init__(self, width: int, head: int, experts: int) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        # Softmax does not see a bias here: its gradient would be zero but for rounding.
        self.key = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, width)
        self.feed = Experts(width, experts) if experts else FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class Language(nn.Module):
    """GPT-2, with its tied weight; with experts in the place of each block's last layers."""

    def __init__(
        self, vocabulary: int, width: int, head: int, blocks: int, length: int, experts: int = 0
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, head, experts) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


class Root(nn.Module):
    """NaN where an entry is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.sqrt())


def made(kind: str, *, large: bool) -> nn.Module:
    torch.manual_seed(1)
    if kind == "root":
        return Root()
    if kind == "resnet" and large:
        from torchvision.models import resnet18

        return resnet18(num_classes=10)
    if kind == "resnet":
        layers = [nn.Conv2d(3, 4, 3), Residual(), Residual(), nn.Flatten(), nn.Linear(64, 10)]
        return nn.Sequential(*layers)
    *sizes, experts = LARGE if large else SMALL
    if kind == "moe" and large:
        sizes[:4] = EXPERT_VOCABULARY, EXPERT_WIDTH, sizes[2], EXPERT_BLOCKS
    return Language(*sizes, experts=experts if kind == "moe" else 0)


def units(net: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded as units; the rest goes with the root."""
    if isinstance(net, Language):
        return list(net.blocks)
    if isinstance(net, nn.Sequential):
        return [net[1]]
    stages = ("layer1", "layer2", "layer3", "layer4")
    return [getattr(net, name) for name in stages if hasattr(net, name)]


def batch(
    kind: str, step: int, dtype: torch.dtype, *, large: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 + step)
    if kind == "root":
        x = torch.rand((BATCH, 7), generator=draw).to(dtype)
        return x, torch.randn((BATCH, 5), generator=draw).to(dtype)
    if kind == "resnet":
        side = 32 if large else 6
        x = torch.randn((BATCH, 3, side, side), generator=draw, dtype=torch.float64).to(dtype)
        return x, torch.randint(10, (BATCH,), generator=draw)
    vocabulary, *_, length, _ = LARGE if large else SMALL
    if kind == "moe" and large:
        vocabulary = EXPERT_VOCABULARY
    tokens = torch.randint(vocabulary, (BATCH, length + 1), generator=draw)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = net(x).double()
    if y.is_floating_point():
        return (out - y).square().mean()
    return F.cross_entropy(out.flatten(0, -2), y.flatten())
