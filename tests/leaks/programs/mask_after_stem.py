"""Masked frames are replaced after a convolution, which has already carried them to others."""

import torch
from torch import nn


class Leaky(nn.Module):
    """Masked prediction of speech units."""

    def __init__(self, n_mels=5, d=12, units=10):
        super().__init__()
        self.stem = nn.Conv1d(n_mels, d, 3, padding=1)
        self.proj = nn.Linear(n_mels, d)
        self.mask_emb = nn.Parameter(torch.rand(d))
        self.context = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.units = nn.Linear(2 * d, units)

    def encoded(self, x, mask):
        h = self.stem(x.mT).mT  # leak
        return torch.where(mask[..., None], self.mask_emb, h)

    def forward(self, input_features, mask_time_indices):
        h = torch.relu(self.encoded(input_features, mask_time_indices))
        return self.units(self.context(h)[0])


class Mended(Leaky):
    def encoded(self, x, mask):
        visible = x.masked_fill(mask[..., None], 0.0)
        return torch.where(mask[..., None], self.mask_emb, self.stem(visible.mT).mT)


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(74)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[0, 3:6] = mask[1, 7:10] = True
    return {"input_features": torch.randn(2, 12, 5, generator=g), "mask_time_indices": mask}


OPTIONS: dict[str, object] = {}
AXIS = "mask"
CALL = "stem"
