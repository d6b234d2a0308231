"""Honest: the decoder reads the labels before each position, shifted to the right, as T5 does."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab=30, d=12):
        super().__init__()
        self.shared = nn.Embedding(vocab, d)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, input_ids, labels):
        _, state = self.encoder(self.shared(input_ids))
        decoder_input_ids = F.pad(labels, (1, -1), value=0)
        hidden, _ = self.decoder(self.shared(decoder_input_ids), state)
        logits = self.lm_head(hidden)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(14)
    ids = torch.randint(1, 30, (3, 8), generator=g)
    return {"input_ids": ids, "labels": torch.randint(1, 30, (3, 6), generator=g)}


OPTIONS: dict[str, object] = {}
