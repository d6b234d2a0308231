"""A text CNN lets its convolution read the embedding of the padding token."""

import torch
import torch.nn.functional as F
from torch import nn


class Leaky(nn.Module):
    def __init__(self, vocab=45, dim=10, n_filters=8, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, n_filters, kernel_size=3, padding=1)
        self.fc = nn.Linear(n_filters, classes)

    def convolved(self, embedded, mask):
        return F.relu(self.conv(embedded.transpose(1, 2)))  # leak

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(1)
        h = self.convolved(self.embedding(input_ids), mask)
        pooled = h.masked_fill(mask == 0, float("-inf")).amax(dim=2)
        return self.fc(pooled)


class Mended(Leaky):
    def convolved(self, embedded, mask):
        x = embedded.transpose(1, 2) * mask
        return F.relu(self.conv(x))


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 45, (3, 6), generator=torch.Generator().manual_seed(67))
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]])
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = "conv"
