"""Small decoders whose parts can be broken one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention of four heads.

    Args:
        norm: whether queries and keys are normalised.
        mask: makes of the causal mask, True where a key is visible, another.
        scale: of the logits, times 1 / √width.
    """

    def __init__(
        self,
        width: int,
        *,
        norm: bool = False,
        mask: Callable[[Tensor], Tensor] = lambda causal: causal,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width // 4) for _ in range(2)) if norm else ()
        self.mask, self.scale = mask, scale

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        if self.norms:
            q, k = (norm(one) for norm, one in zip(self.norms, (q, k), strict=True))
        mask = self.mask(torch.ones(t, t, dtype=torch.bool).tril())
        scale = self.scale / math.sqrt(width // 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.out(y.transpose(1, 2).flatten(2))


class Mixture(nn.Module):
    """Two of eight experts for each token; ``balance`` is the load balancing loss of Switch."""

    def __init__(self, width: int, experts: int = 8, top_k: int = 2) -> None:
        super().__init__()
        self.gate, self.top_k = nn.Linear(width, experts, bias=False), top_k
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
            for _ in range(experts)
        )
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        scores = self.gate(rows).softmax(-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        load = torch.bincount(chosen.flatten(), minlength=len(self.experts)) / chosen.numel()
        self.balance = len(self.experts) * (load * scores.mean(0)).sum()
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, token, weights[token, place, None] * expert(rows[token]))
        return out.view(x.shape)


class Block(nn.Module):
    """Pre-norm: attention, then an MLP or a mixture, each times a gate."""

    def __init__(self, width: int, mixture: bool, **attention: object) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, **attention)
        mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp = Mixture(width) if mixture else mlp
        self.gate = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gate * self.attention(self.norm1(x))
        return x + self.gate * self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Blocks between an embedding and logits."""

    def __init__(
        self, words: int = 24, width: int = 32, blocks: int = 2, *, mixture: bool = False,
        **attention: object,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, mixture, **attention) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @property
    def balance(self) -> Tensor:
        """The sum of the mixtures' balancing losses."""
        return torch.stack([block.mlp.balance for block in self.blocks]).sum()
