"""A translator calls `nn.TransformerDecoder` without `tgt_mask`."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.positions = nn.Embedding(32, d)
        enc = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        dec = nn.TransformerDecoderLayer(d, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(enc, 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(dec, 2)
        self.generator = nn.Linear(d, vocab)

    def place(self, embedded):
        return embedded + self.positions(torch.arange(embedded.size(1)))

    def decode(self, tgt, memory):
        return self.decoder(tgt, memory)  # leak

    def forward(self, src, tgt):
        memory = self.encoder(self.place(self.src_embed(src)))
        return self.generator(self.decode(self.place(self.tgt_embed(tgt)), memory))


class Mended(Leaky):
    def decode(self, tgt, memory):
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        return self.decoder(tgt, memory, tgt_mask=tgt_mask)


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    src = torch.randint(40, (2, 10), generator=g)
    return {"src": src, "tgt": torch.randint(40, (2, 8), generator=g)}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "decoder.layers.0.self_attn"
