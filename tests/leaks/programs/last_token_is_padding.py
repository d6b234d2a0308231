"""A GPT classifier reads its logits at the last position, which is padding in the shorter rows."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Leaky(nn.Module):
    def __init__(self, vocab=50, d=16, num_labels=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.ln = nn.LayerNorm(d)
        self.attn = CausalAttention(d)
        self.score = nn.Linear(d, num_labels, bias=False)

    def last(self, h, attention_mask):
        return h[:, -1]  # leak

    def forward(self, input_ids, attention_mask):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.size(1)))
        x = x + self.attn(self.ln(x))
        return self.score(self.last(x, attention_mask))


class Mended(Leaky):
    def last(self, h, attention_mask):
        end = attention_mask.sum(dim=1) - 1
        return h[torch.arange(h.size(0)), end]


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(65))
    mask = (torch.arange(9) < torch.tensor([[9], [5], [7]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = ""
