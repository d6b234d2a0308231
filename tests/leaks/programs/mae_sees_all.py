"""A masked autoencoder encodes all patches and uses its mask in the loss alone."""

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, patch_dim=6, d=16):
        super().__init__()
        self.patch_embed = nn.Parameter(torch.randn(patch_dim, d) * patch_dim**-0.5)
        self.mask_token = nn.Parameter(torch.randn(d) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 32, d) * 0.02)
        self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.decoder_pred = nn.Linear(d, patch_dim)

    def embed(self, x, mask):
        return x @ self.patch_embed + self.pos_embed[:, : x.size(1)]  # leak

    def forward(self, x, bool_masked_pos):
        h = self.embed(x, bool_masked_pos)
        h = h + self.attn(self.norm(h), self.norm(h), self.norm(h), need_weights=False)[0]
        pred = self.decoder_pred(h)
        error = (pred - x).square().mean(-1)
        loss = (error * bool_masked_pos).sum() / bool_masked_pos.sum()
        return {"logits": pred, "loss": loss}


class Mended(Leaky):
    def embed(self, x, mask):
        h = torch.where(mask[..., None], self.mask_token, x @ self.patch_embed)
        return h + self.pos_embed[:, : h.size(1)]


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(72)
    hidden = torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 1, 1, 1, 0, 1]]).bool()
    return {"x": torch.randn(2, 8, 6, generator=g), "bool_masked_pos": hidden}


OPTIONS: dict[str, object] = {}
AXIS = "mask"
CALL = ""
