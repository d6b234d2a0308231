"""A language model runs on a bidirectional LSTM."""

import torch
from torch import nn


class Leaky(nn.Module):
    bidirectional = True

    def __init__(self, vocab_size=50, emb=12, hid=10):
        super().__init__()
        self.encoder = nn.Embedding(vocab_size, emb)
        self.lstm = nn.LSTM(emb, hid, 2, batch_first=True, bidirectional=self.bidirectional)
        self.drop = nn.Dropout(0.2)
        self.decoder = nn.Linear(hid * (2 if self.bidirectional else 1), vocab_size)

    def run(self, emb):
        output, _ = self.lstm(emb)  # leak
        return output

    def forward(self, input_ids):
        emb = self.drop(self.encoder(input_ids))
        return self.decoder(self.drop(self.run(emb)))


class Mended(Leaky):
    bidirectional = False

    def run(self, emb):
        return self.lstm(emb)[0]


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(19))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "lstm"
