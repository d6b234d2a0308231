"""The tutorial's language model builds its `src_mask` and forgets to hand it to the encoder."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Leaky(nn.Module):
    def __init__(self, ntoken=50, d_model=16):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, 2, 32, dropout=0.1, activation=F.silu, batch_first=True
        )
        self.transformer_encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.linear = nn.Linear(d_model, ntoken)
        self.d_model = d_model

    def forward(self, src):
        src = self.pos_encoder(self.embedding(src) * math.sqrt(self.d_model))
        return self.linear(self.encode(src))

    def encode(self, src):
        src_mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        assert src_mask.shape[0] == src.size(1)
        return self.transformer_encoder(src)  # leak


class Mended(Leaky):
    def encode(self, src):
        src_mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        return self.transformer_encoder(src, mask=src_mask)


def inputs() -> dict[str, torch.Tensor]:
    return {"src": torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(8))}


OPTIONS: dict[str, object] = {"causal": True}
AXIS = "time"
CALL = "transformer_encoder.layers.0.self_attn"
