"""The global state of a patch is added to the bytes of that patch in place of the next one."""

import torch
import torch.nn.functional as F
from torch import nn


class Leaky(nn.Module):
    """Patches of four bytes: a global GRU over patches and a local one inside each."""

    patch = 4

    def __init__(self, vocab=48, d=8):
        super().__init__()
        self.byte_emb = nn.Embedding(vocab, d)
        self.global_rnn = nn.GRU(self.patch * d, d, batch_first=True)
        self.local_rnn = nn.GRU(d, d, batch_first=True)
        self.to_logits = nn.Linear(d, vocab)

    def spread(self, patches):
        return patches.repeat_interleave(self.patch, dim=1)  # leak

    def forward(self, input_ids):
        b, n = input_ids.shape
        x = self.byte_emb(input_ids)
        patches, _ = self.global_rnn(x.reshape(b, n // self.patch, -1))
        x = x + self.spread(patches)
        local, _ = self.local_rnn(x.reshape(b * n // self.patch, self.patch, -1))
        return self.to_logits(local.reshape(b, n, -1))


class Mended(Leaky):
    def spread(self, patches):
        previous = F.pad(patches, (0, 0, 1, -1))
        return previous.repeat_interleave(self.patch, dim=1)


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(48, (2, 16), generator=torch.Generator().manual_seed(36))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = ""
