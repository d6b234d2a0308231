"""The final state of a GRU is taken after it has run over the padding."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Leaky(nn.Module):
    """Sentiment from the last hidden state."""

    def __init__(self, vocab=40, emb=10, hidden=12):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=0)
        self.gru = nn.GRU(emb, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 2)

    def encode(self, embedded, lengths):
        _, hidden = self.gru(embedded)  # leak
        return hidden[-1]

    def forward(self, input_ids, lengths):
        return self.fc(self.encode(self.embedding(input_ids), lengths))


class Mended(Leaky):
    def encode(self, embedded, lengths):
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, hidden = self.gru(packed)
        return hidden[-1]


def inputs() -> dict[str, torch.Tensor]:
    lengths = torch.tensor([8, 5, 3])
    ids = torch.randint(1, 40, (3, 8), generator=torch.Generator().manual_seed(66))
    return {"input_ids": ids * (torch.arange(8) < lengths[:, None]), "lengths": lengths}


OPTIONS: dict[str, object] = {"padding": 0}
AXIS = "padding"
CALL = "gru"
