"""Eigen-CAM: the direction in which a layer's maps vary most; it knows no class."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Muhammad & Yeasin 2020, arXiv 2008.00299"
signed = False
reads = ("layer",)


def attribute(subject: Subject) -> Tensor:
    """relu of the centred maps on their first right singular direction, upsampled, [N, H, W].

    The direction's sign is arbitrary. Here the side on which the activations are larger is the
    positive one; pytorch-grad-cam keeps whichever the decomposition gives.
    """
    activation = subject.activation.float()
    return subject.upsample(projected(activation).relu())


def projected(activation: Tensor) -> Tensor:
    """[N, K, h, w] → [N, h, w]: U₁ · s₁ of the positions × channels matrix, centred."""
    rows = activation.flatten(2).transpose(1, 2)
    centred = rows - rows.mean(dim=1, keepdim=True)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    along: Tensor = left[:, :, 0] * values[:, :1]
    size = rows.norm(dim=2)
    with_size = (along * (size - size.mean(dim=1, keepdim=True))).sum(dim=1, keepdim=True)
    oriented: Tensor = along * torch.where(with_size < 0, -1.0, 1.0)
    maps: Tensor = oriented.reshape(len(activation), *activation.shape[2:])
    return maps
