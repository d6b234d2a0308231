"""A tagger pads with token 0 and does not give `nn.MultiheadAttention` a `key_padding_mask`."""

import torch
from torch import nn

PAD = 0


class Leaky(nn.Module):
    def __init__(self, vocab=35, d=16, tags=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Embedding(40, d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ffn = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, d))
        self.tag = nn.Linear(d, tags)

    def attend(self, x, padded):
        return self.attn(x, x, x, need_weights=False)[0]  # leak

    def forward(self, input_ids):
        x = self.embed(input_ids) + self.pos(torch.arange(input_ids.shape[1]))
        x = self.norm1(x + self.attend(x, input_ids == PAD))
        return self.tag(self.norm2(x + self.ffn(x)))


class Mended(Leaky):
    def attend(self, x, padded):
        return self.attn(x, x, x, key_padding_mask=padded, need_weights=False)[0]


def inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 35, (3, 9), generator=torch.Generator().manual_seed(69))
    ids[1, 6:] = PAD
    ids[2, 4:] = PAD
    return {"input_ids": ids}


OPTIONS: dict[str, object] = {"padding": 0}
AXIS = "padding"
CALL = "attn"
