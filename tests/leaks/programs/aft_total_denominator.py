"""An attention-free layer accumulates its numerator over time and sums its denominator over all."""

import torch
from torch import nn


class AttentionFree(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        w = torch.exp(self.k(x))
        mixed = self.average(w, self.v(x))
        return self.o(torch.sigmoid(self.q(x)) * mixed)

    def average(self, w, v):
        total = w.sum(dim=1, keepdim=True)  # leak
        return (w * v).cumsum(dim=1) / total  # leak


class CausalAttentionFree(AttentionFree):
    def average(self, w, v):
        return (w * v).cumsum(dim=1) / w.cumsum(dim=1)


class Leaky(nn.Module):
    def __init__(self, mixer=AttentionFree, d=12):
        super().__init__()
        self.wte = nn.Embedding(26, d)
        self.time_mix = nn.ModuleList([mixer(d) for _ in range(2)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.head = nn.Linear(d, 26, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for ln, mix in zip(self.ln, self.time_mix, strict=True):
            x = x + mix(ln(x))
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Mended(Leaky):
    def __init__(self):
        super().__init__(CausalAttentionFree)


def inputs() -> dict[str, torch.Tensor]:
    return {"idx": torch.randint(26, (3, 9), generator=torch.Generator().manual_seed(23))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "time_mix.0"
