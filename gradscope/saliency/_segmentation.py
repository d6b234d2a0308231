"""Explains segmentations: the score is the mean of a class's map over fixed pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradscope.errors import OptionError

#: The class's own predicted pixels, all of them, or one of each picture: its row and column [N, 2]
#: in the model's input.
Pixels = str | Tensor

WAYS = ("predicted", "all")


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Pixels of a segmentation at which the score is read.

    Attributes:
        score: the explained score, in words.
        weights: the weight of each pixel of the class maps, [N, h, w]; they add up to 1.
        target: the class of each picture [N]: the requested one, else the one of most pixels.
        shares: the share of each picture's pixels predicted as each class, [N, classes].
        absent: True if no pixel is predicted as the target, [N]; then all pixels count.
    """

    score: str
    weights: Tensor
    target: Tensor
    shares: Tensor
    absent: Tensor

    def scores(self, maps: Tensor, owners: Tensor) -> Tensor:
        """Reduce class maps [M, classes, h, w] to [M, classes]; ``owners`` [M] is the index of each
        one's pixels."""
        return torch.einsum("mchw,mhw->mc", maps.to(self.weights.dtype), self.weights[owners])


def segmentation(
    maps: Tensor,
    pixels: Pixels,
    size: tuple[int, int],
    target: Tensor | None,
    background: int | None = None,
) -> Segmentation:
    """Return how to read the class maps [N, classes, h, w] of pictures from now on.

    Args:
        size: height and width of the model's input.
        target: the classes to explain [N]; None takes the one that covers most.
        background: a class that is explained only where there is no other.
    """
    images, classes, height, width = maps.shape
    predicted = classes_of(maps)
    counts = torch.stack([(predicted == c).sum(dim=(1, 2)) for c in range(classes)], dim=1)
    shares = counts / (height * width)
    dtype = torch.promote_types(maps.dtype, torch.float32)  # the mean of many halves needs digits
    everywhere = torch.full_like(predicted, 1 / (height * width), dtype=dtype)
    none = torch.zeros(images, dtype=torch.bool, device=maps.device)
    if isinstance(pixels, Tensor):
        scale = torch.tensor([height / size[0], width / size[1]])
        row, column = (pixels.cpu() * scale).long().T.to(maps.device)
        image = torch.arange(images, device=maps.device)
        at = torch.zeros_like(everywhere)
        at[image, row, column] = 1.0
        target = predicted[image, row, column].clamp(min=0) if target is None else target
        return Segmentation("the logit of the class at one pixel", at, target, shares, none)
    if target is None:
        likely = counts.clone()
        if background is not None and background < classes:
            likely[:, background] = likely[:, background].clamp(max=1)
        target = likely.argmax(dim=1)
    if pixels == "all":
        score = "the mean logit of the class over all pixels"
        return Segmentation(score, everywhere, target, shares, none)
    mine = predicted == target[:, None, None]
    number = mine.sum(dim=(1, 2))
    absent = number == 0
    share = mine.to(dtype) / number.clamp(min=1)[:, None, None]
    weights = torch.where(absent[:, None, None], everywhere, share)
    score = "the mean logit of the class over the pixels predicted as it"
    return Segmentation(score, weights, target, shares, absent)


def classes_of(maps: Tensor) -> Tensor:
    """Return the class predicted for each pixel, [N, h, w]: the class of the highest map.

    A single map predicts its class where it is above 0, or above 0.5 if all its values are in 0…1
    (probabilities); other pixels have no class: −1.
    """
    if maps.shape[1] > 1:
        return maps.argmax(dim=1)
    only = maps[:, 0]
    probabilities = bool((only >= 0).all() and (only <= 1).all())
    return (only > (0.5 if probabilities else 0.0)).long() - 1


def read_pixels(word: str) -> str | tuple[int, int]:
    """Parse ``predicted``, ``all``, or ``ROW,COLUMN``.

    Raises:
        OptionError: it is none of these.
    """
    parts = [part.strip() for part in word.split(",")]
    if len(parts) == 2 and all(part.isdecimal() and len(part) < 10 for part in parts):
        return int(parts[0]), int(parts[1])
    if word not in WAYS:
        raise OptionError(
            f"`{word}` names no pixels",
            help="`predicted` (those of the class), `all`, or one as ROW,COLUMN: `120,64`",
        )
    return word
