"""An encoder takes an `attention_mask`, hands it down, and its attention never uses it."""

import torch
from torch import nn


class BertSelfAttention(nn.Module):
    def __init__(self, hidden=16, heads=2):
        super().__init__()
        self.heads, self.head_size = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_size).permute(0, 2, 1, 3)

    def probs(self, scores, attention_mask):
        return nn.functional.softmax(scores, dim=-1)  # leak

    def forward(self, hidden_states, attention_mask):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_size**0.5
        context = torch.matmul(self.probs(scores, attention_mask), v)
        return context.permute(0, 2, 1, 3).flatten(2)


class MaskedBertSelfAttention(BertSelfAttention):
    def probs(self, scores, attention_mask):
        extended = (1.0 - attention_mask[:, None, None, :]) * torch.finfo(scores.dtype).min
        return nn.functional.softmax(scores + extended, dim=-1)


class Leaky(nn.Module):
    attention = BertSelfAttention

    def __init__(self, vocab=40, hidden=16):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(32, hidden)
        self.layer_norm = nn.LayerNorm(hidden)
        self.layer = nn.ModuleList([self.attention() for _ in range(2)])
        self.classifier = nn.Linear(hidden, 5)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.shape[1])
        h = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        for layer in self.layer:
            h = self.layer_norm(h + layer(h, attention_mask.float()))
        return self.classifier(h)


class Mended(Leaky):
    attention = MaskedBertSelfAttention


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 40, (3, 10), generator=torch.Generator().manual_seed(60))
    mask = (torch.arange(10) < torch.tensor([[10], [6], [8]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


OPTIONS: dict[str, object] = {}
AXIS = "padding"
CALL = "layer.0"
