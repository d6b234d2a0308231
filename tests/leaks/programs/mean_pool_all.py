"""A sentence encoder averages over all positions, the padded ones included."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, vocab=50, d=16, classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.norm = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.classifier = nn.Linear(d, classes)

    def pool(self, h, attention_mask):
        return h.mean(dim=1)  # leak

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.embed(input_ids))
        ignored = attention_mask == 0
        h = x + self.attn(x, x, x, key_padding_mask=ignored, need_weights=False)[0]
        return self.classifier(self.pool(h, attention_mask))


class Mended(Leaky):
    def pool(self, h, attention_mask):
        m = attention_mask.unsqueeze(-1).to(h.dtype)
        return (h * m).sum(dim=1) / m.sum(dim=1).clamp(min=1)


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 50, (3, 8), generator=torch.Generator().manual_seed(62))
    mask = torch.tensor([[1] * 8, [1] * 3 + [0] * 5, [1] * 6 + [0] * 2])
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = ""
