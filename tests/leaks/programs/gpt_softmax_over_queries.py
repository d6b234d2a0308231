"""The scores are masked, and then the softmax runs over the queries in place of the keys."""

import torch
from torch import nn


class Head(nn.Module):
    """One head of self-attention."""

    def __init__(self, n_embd, head_size, block_size=16):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def scores(self, x):
        _, T, _ = x.shape
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * x.shape[-1] ** -0.5
        return wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))

    def forward(self, x):
        wei = self.scores(x).softmax(dim=1)  # leak
        return wei @ self.value(x)


class MendedHead(Head):
    def forward(self, x):
        wei = self.scores(x).softmax(dim=-1)
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, head, n_embd, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([head(n_embd, n_embd // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class Leaky(nn.Module):
    head = Head

    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(65, 16)
        self.position_embedding_table = nn.Embedding(16, 16)
        self.sa = MultiHeadAttention(self.head, 16, 4)
        self.ffwd = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.lm_head = nn.Linear(16, 65)

    def forward(self, idx):
        x = self.token_embedding_table(idx)
        x = x + self.position_embedding_table(torch.arange(idx.shape[1]))
        x = x + self.sa(x)
        return self.lm_head(x + self.ffwd(x))


class Mended(Leaky):
    head = MendedHead


def inputs() -> dict[str, torch.Tensor]:
    return {"idx": torch.randint(65, (4, 8), generator=torch.Generator().manual_seed(4))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "sa.heads.0"
