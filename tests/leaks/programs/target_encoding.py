"""A category is encoded by the mean target of the batch, the sample's own target included."""

import torch
import torch.nn.functional as F
from torch import nn


class TargetEncoder(nn.Module):
    def __init__(self, categories):
        super().__init__()
        self.categories = categories
        table = torch.linspace(-1, 1, categories)
        self.register_buffer("table", table)

    def forward(self, category, target):
        onehot = F.one_hot(category, self.categories).to(target.dtype)
        means = (onehot * target[:, None]).sum(0) / onehot.sum(0).clamp(min=1)  # leak
        return means[category]  # leak


class FrozenTargetEncoder(TargetEncoder):
    """Means of the training set, computed once."""

    def forward(self, category, target):
        return self.table[category]


class Leaky(nn.Module):
    encoder = TargetEncoder

    def __init__(self, n_numeric=4, categories=3):
        super().__init__()
        self.encode = self.encoder(categories)
        self.mlp = nn.Sequential(nn.Linear(n_numeric + 1, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, x, category, target):
        extra = self.encode(category, target)
        prediction = self.mlp(torch.cat([x, extra[:, None]], dim=1)).squeeze(1)
        return prediction, F.mse_loss(prediction, target)


class Mended(Leaky):
    encoder = FrozenTargetEncoder


def inputs() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(76)
    x, target = torch.randn(4, 4, generator=g), torch.randn(4, generator=g)
    return {"x": x, "category": torch.tensor([0, 1, 0, 2]), "target": target}


OPTIONS: dict[str, object] = {}
AXIS = "label"
ALSO = {"batch"}
CALL = "encode"
