"""Score-CAM: a layer's maps, each weighted by the score of the picture that shows only its part."""

from __future__ import annotations

import torch
from torch import Tensor

from gradscope.saliency._subject import Subject

paper = "Wang et al. 2020, arXiv 1910.01279"
signed = False
reads = ("layer", "scores")


def attribute(subject: Subject) -> Tensor:
    """relu(Σ_k w_k A^k) upsampled, [N, H, W], with w = softmax over k of S(x ⊙ norm(up(A^k))).

    ``norm`` scales each upsampled map to [0, 1]; a constant map shows nothing (0), and as all of
    these show the same picture, it is scored once. No baseline is subtracted, because it would
    cancel in the softmax. One forward pass per channel.

    pytorch-grad-cam upsamples the maps with ``align_corners=True`` before it masks with them, adds
    1e-8 to the range that it divides by, and scales the result to [0, 1].
    """
    images, channels = subject.activation.shape[:2]
    maps = subject.activation.reshape(images * channels, *subject.activation.shape[2:])
    vary = maps.flatten(1).amax(1) > maps.flatten(1).amin(1)
    # One row for each map with content, and one for each image without.
    chosen = vary.nonzero()[:, 0]
    owners = torch.cat([chosen // channels, torch.arange(images, device=maps.device)])

    def make(items: slice) -> Tensor:
        shown = subject.upsample(maps[chosen[items]])
        low, high = shown.amin((1, 2), keepdim=True), shown.amax((1, 2), keepdim=True)
        masks = ((shown - low) / (high - low))[:, None].to(subject.inputs.dtype)
        blank = masks.new_zeros(len(owners[items]) - len(masks), 1, *masks.shape[2:])
        return subject.inputs[owners[items]] * torch.cat([masks, blank])

    scores = subject.scores_of(make, len(owners), owners)
    score_of_map = scores[len(chosen) :].repeat_interleave(channels)
    score_of_map[chosen] = scores[: len(chosen)]
    weights = score_of_map.view(images, channels).softmax(dim=1)
    return subject.upsample(torch.einsum("nk,nkhw->nhw", weights, subject.activation).relu())
