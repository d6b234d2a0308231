"""Honest: an encoder sees both sides by design, and its padding is masked."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(64, d)
        layer = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mlm = nn.Linear(d, vocab)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids) + self.pos.weight[: input_ids.size(1)]
        return self.mlm(self.encoder(x, src_key_padding_mask=attention_mask == 0))


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(12))
    mask = (torch.arange(9) < torch.tensor([[9], [4], [7]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
