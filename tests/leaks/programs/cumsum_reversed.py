"""A decayed running sum is taken over the flipped sequence."""

import torch
from torch import nn


def decayed_sum(x, log_decay):
    """y[t] = sum over s <= t of exp(log_decay * (t - s)) x[s]."""
    steps = torch.arange(x.shape[1], dtype=x.dtype)[None, :, None]
    return (x * torch.exp(-log_decay * steps)).cumsum(1) * torch.exp(log_decay * steps)


class StateSpace(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.log_decay = nn.Parameter(-torch.rand(d) * 0.3)

    def scan(self, u):
        return decayed_sum(u.flip(1), self.log_decay).flip(1)  # leak

    def forward(self, x):
        u, gate = self.in_proj(x).chunk(2, dim=-1)
        return x + self.out_proj(self.scan(u) * torch.sigmoid(gate))


class MendedStateSpace(StateSpace):
    def scan(self, u):
        return decayed_sum(u, self.log_decay)


class Leaky(nn.Module):
    layer = StateSpace

    def __init__(self, vocab=40, d=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.backbone = nn.Sequential(self.layer(d), nn.LayerNorm(d), self.layer(d))
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids):
        return self.lm_head(self.backbone(self.embed(input_ids)))


class Mended(Leaky):
    layer = MendedStateSpace


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(21))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "backbone.0"
