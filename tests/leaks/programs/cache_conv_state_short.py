"""The state of a causal convolution keeps one input too few for the next step."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv(nn.Module):
    def __init__(self, d, kernel=4):
        super().__init__()
        self.conv = nn.Conv1d(d, d, kernel, groups=d)
        self.reach = kernel - 1

    def state(self, window):
        return F.pad(window[..., 1 - self.reach :], (1, 0))  # leak

    def forward(self, x, state=None):
        x = x.mT
        window = F.pad(x, (self.reach, 0)) if state is None else torch.cat([state, x], dim=-1)
        return F.silu(self.conv(window)).mT, self.state(window)


class MendedCausalConv(CausalConv):
    def state(self, window):
        return window[..., -self.reach :]


class Leaky(nn.Module):
    conv = CausalConv

    def __init__(self, vocab=28, d=10):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList([self.conv(d) for _ in range(2)])
        self.norm = nn.RMSNorm(d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        x, states = self.embeddings(input_ids), []
        for layer, state in zip(self.layers, past_key_values or [None] * 2, strict=True):
            y, state = layer(self.norm(x), state)
            x = x + y
            states.append(state)
        return {"logits": self.lm_head(x), "past_key_values": states if use_cache else None}


class Mended(Leaky):
    conv = MendedCausalConv


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(28, (2, 10), generator=torch.Generator().manual_seed(87))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "cache"
CALL = "layers.0"
