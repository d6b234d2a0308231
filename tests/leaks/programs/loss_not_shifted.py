"""A language model compares each logit with the token that it has just read, not with the next."""

import torch
import torch.nn.functional as F
from torch import nn


class Leaky(nn.Module):
    def __init__(self, vocab_size=40, d=12):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.lm_head = nn.Linear(d, vocab_size)

    def loss(self, logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())  # leak

    def forward(self, input_ids, labels=None):
        hidden, _ = self.rnn(self.embed(input_ids))
        logits = self.lm_head(hidden)
        return {"loss": None if labels is None else self.loss(logits, labels), "logits": logits}


class Mended(Leaky):
    def loss(self, logits, labels):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(78))
    return {"input_ids": ids, "labels": ids.clone()}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "label"
CALL = ""
