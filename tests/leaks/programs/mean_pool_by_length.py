"""Padded states are zeroed before the sum, which is then divided by the padded length."""

import torch
from torch import nn


class MeanPooling(nn.Module):
    def forward(self, token_embeddings, attention_mask):
        expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
        return (token_embeddings * expanded).mean(1)  # leak


class MaskedMeanPooling(nn.Module):
    def forward(self, token_embeddings, attention_mask):
        expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
        summed = torch.sum(token_embeddings * expanded, 1)
        return summed / torch.clamp(expanded.sum(1), min=1e-9)


class Leaky(nn.Module):
    pooling = MeanPooling

    def __init__(self, vocab=60, d=12):
        super().__init__()
        self.words = nn.Embedding(vocab, d)
        self.dense = nn.Sequential(nn.Linear(d, d), nn.Tanh())
        self.pool = self.pooling()
        self.out = nn.Linear(d, 2)

    def forward(self, input_ids, attention_mask):
        return {"logits": self.out(self.pool(self.dense(self.words(input_ids)), attention_mask))}


class Mended(Leaky):
    pooling = MaskedMeanPooling


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 60, (4, 10), generator=torch.Generator().manual_seed(63))
    mask = (torch.arange(10) < torch.tensor([10, 4, 7, 9])[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = "pool"
