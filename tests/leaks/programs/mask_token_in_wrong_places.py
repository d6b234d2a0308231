"""The mask token replaces the visible patches, so the model sees those that it should predict."""

import torch
from torch import nn


class PatchEmbeddings(nn.Module):
    def __init__(self, patch_dim, d):
        super().__init__()
        self.projection = nn.Parameter(torch.randn(patch_dim, d) * patch_dim**-0.5)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, d))
        self.position_embeddings = nn.Parameter(torch.randn(1, 64, d) * 0.1)

    def replaced(self, x, w):
        return (x @ self.projection) * w + self.mask_token * (1 - w)  # leak

    def forward(self, pixel_patches, bool_masked_pos):
        w = bool_masked_pos.unsqueeze(-1).type_as(self.mask_token)
        h = self.replaced(pixel_patches, w)
        return h + self.position_embeddings[:, : h.size(1)]


class MendedPatchEmbeddings(PatchEmbeddings):
    def replaced(self, x, w):
        return (x @ self.projection) * (1 - w) + self.mask_token * w


class Leaky(nn.Module):
    embeddings_class = PatchEmbeddings

    def __init__(self, patch_dim=5, d=12, codes=16):
        super().__init__()
        self.embeddings = self.embeddings_class(patch_dim, d)
        self.mixer = nn.Sequential(nn.LayerNorm(d), nn.GRU(d, d // 2, 1, True, True, 0.0, True))
        self.lm_head = nn.Linear(d, codes)

    def forward(self, pixel_patches, bool_masked_pos):
        h = self.embeddings(pixel_patches, bool_masked_pos)
        return self.lm_head(h + self.mixer(h)[0])


class Mended(Leaky):
    embeddings_class = MendedPatchEmbeddings


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(73)
    masked = torch.rand(3, 9, generator=g) < 0.5
    return {"pixel_patches": torch.randn(3, 9, 5, generator=g), "bool_masked_pos": masked}


OPTIONS: dict[str, object] = {}
AXIS = "mask"
CALL = "embeddings"
