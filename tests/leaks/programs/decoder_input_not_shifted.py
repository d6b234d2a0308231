"""The decoder of a sequence-to-sequence model reads its labels without the shift to the right."""

import torch
import torch.nn.functional as F
from torch import nn


class Leaky(nn.Module):
    bos = 1

    def __init__(self, vocab=30, d=14):
        super().__init__()
        self.shared = nn.Embedding(vocab, d)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab)

    def decoder_inputs(self, labels):
        return self.shared(labels)  # leak

    def forward(self, input_ids, labels):
        _, state = self.encoder(self.shared(input_ids))
        hidden, _ = self.decoder(self.decoder_inputs(labels), state)
        logits = self.lm_head(hidden)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Mended(Leaky):
    def decoder_inputs(self, labels):
        shifted = labels.new_full(labels.shape, self.bos)
        shifted[:, 1:] = labels[:, :-1]
        return self.shared(shifted)


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(77)
    source = torch.randint(2, 30, (2, 9), generator=g)
    return {"input_ids": source, "labels": torch.randint(2, 30, (2, 7), generator=g)}


OPTIONS: dict[str, object] = {}
AXIS = "label"
CALL = "shared"
