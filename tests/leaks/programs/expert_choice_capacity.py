"""Experts choose the best tokens of the sequence, so tokens of a causal model compete over time."""

import torch
from torch import nn


class ExpertChoice(nn.Module):
    def __init__(self, d, experts=4):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
            for _ in range(experts)
        )

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        chosen = self.choose(gates)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * (gates[..., i] * chosen[..., i])[..., None]
        return out

    def choose(self, gates):
        capacity = gates.size(1) // gates.size(2)
        best = gates.topk(capacity, dim=1).indices  # leak
        return torch.zeros_like(gates).scatter(1, best, 1.0)  # leak


class TokenChoice(ExpertChoice):
    def choose(self, gates):
        best = gates.topk(1, dim=-1).indices
        return torch.zeros_like(gates).scatter(-1, best, 1.0)


class Leaky(nn.Module):
    moe = ExpertChoice

    def __init__(self, vocab=40, d=12):
        super().__init__()
        torch.manual_seed(0)
        self.wte = nn.Embedding(vocab, d)
        self.mixer = nn.GRU(d, d, batch_first=True)
        self.ffn = self.moe(d)
        self.norm = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        x = self.wte(input_ids)
        x = x + self.mixer(x)[0]
        return self.lm_head(x + self.ffn(self.norm(x)))


class Mended(Leaky):
    moe = TokenChoice


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(40, (2, 16), generator=torch.Generator().manual_seed(44))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "ffn"
