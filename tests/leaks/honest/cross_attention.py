"""Honest: a causal decoder may see all of the source by cross-attention; its target is masked."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocab, d), nn.Embedding(32, d)
        self.model = nn.Transformer(d, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(d, vocab)

    def placed(self, ids):
        return self.embed(ids) + self.pos.weight[: ids.size(1)]

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        h = self.model(self.placed(src), self.placed(tgt), tgt_mask=mask, tgt_is_causal=True)
        return self.generator(h)


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(8)
    src = torch.randint(40, (2, 8), generator=g)
    return {"src": src, "tgt": torch.randint(40, (2, 8), generator=g)}


OPTIONS: dict[str, object] = {"causal": True}
