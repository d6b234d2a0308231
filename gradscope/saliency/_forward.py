"""From pictures to scores of classes: how the model is called, and what of its output is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.errors import OptionError
from gradscope.nesting import find
from gradscope.saliency._inputs import ModelInputs
from gradscope.saliency._segmentation import Pixels, Segmentation, segmentation


@dataclass(slots=True)
class Forward:
    """One model's forward for pictures [N, C, H, W] and whatever is made of them.

    Attributes:
        others: the inputs that are held fixed.
        pixels: where the class maps of a segmentation are read; None: wherever the class is
            predicted, if the model is no classifier.
        target: the classes to explain [N], where they were asked for.
        background: a class that is explained only on demand.
        segmentation: what the pictures themselves were found to hold; None of a classifier.
    """

    model: nn.Module
    pictures: Tensor
    others: ModelInputs
    pixels: Pixels | None = None
    target: Tensor | None = None
    background: int | None = None
    segmentation: Segmentation | None = None

    def __call__(self, inputs: Tensor, owners: Tensor) -> Tensor:
        """The scores [M, classes] of inputs [M, C, H, W], with a graph where those have one.

        ``owners`` [M] says which of the pictures each row was made of. The inputs are the model's
        to write into.

        Raises:
            OptionError: the output holds neither scores of classes nor maps of them.
        """
        output = self.output(inputs, owners)
        scores = None if self.pixels is not None else class_scores(output, len(inputs))
        if scores is not None:
            return scores
        maps = class_maps(output, len(inputs))
        if maps is None:
            raise _nothing_to_explain(output, len(inputs), self.pixels)
        if self.segmentation is None:
            self.segmentation = self._segmentation()
        return self.segmentation.scores(maps, owners)

    def output(self, inputs: Tensor, owners: Tensor) -> Any:
        """What the model gives for inputs [M, C, H, W]."""
        return self.others.call(self.model, inputs, owners)

    def _segmentation(self) -> Segmentation:
        rows = len(self.pictures)
        # What is kept here takes part in graphs, and the first forward may have none.
        with torch.inference_mode(False), torch.no_grad():
            everyone = torch.arange(rows, device=self.pictures.device)
            maps = class_maps(self.output(self.pictures.clone(), everyone), rows)
        assert maps is not None  # the same model on the same kind of input
        size = (self.pictures.shape[-2], self.pictures.shape[-1])
        pixels = "predicted" if self.pixels is None else self.pixels
        return segmentation(maps.clone(), pixels, size, self.target, self.background)


def class_scores(output: Any, rows: int) -> Tensor | None:
    """The first floating tensor [rows, classes] of a model's output, at whatever depth.

    Where there is none, the first [rows]: one score for each.
    """
    floating = [tensor for _, tensor in find(output, Tensor) if tensor.is_floating_point()]
    found = [tensor for tensor in floating if tensor.dim() in (1, 2) and len(tensor) == rows]
    flat = next((tensor for tensor in found if tensor.dim() == 2), None)
    if flat is not None or class_maps(output, rows) is not None:
        return flat
    return found[0][:, None] if found else None


def class_maps(output: Any, rows: int) -> Tensor | None:
    """The first floating tensor [rows, classes, h, w] of a model's output, at whatever depth."""
    for _, tensor in find(output, Tensor):
        if tensor.dim() == 4 and tensor.is_floating_point() and len(tensor) == rows:
            return tensor
    return None


def probabilities(scores: Tensor) -> Tensor:
    """Scores [M, classes] after softmax; a single one after the logistic function."""
    return scores.float().softmax(1) if scores.shape[1] > 1 else scores.float().sigmoid()


def _nothing_to_explain(output: Any, rows: int, pixels: Pixels | None) -> OptionError:
    tensors = [tensor for _, tensor in find(output, Tensor)]
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensor"
    if pixels is not None:
        return OptionError(
            f"the model's output has no class maps [{rows}, classes, h, w]: it is {shapes}",
            help="`--pixels` is for segmentations; leave it out",
        )
    return OptionError(
        f"the model's output has no scores [{rows}, classes] to explain: it is {shapes}",
        help="saliency explains classifiers and segmentations; check the size of the input, or "
        "wrap the model in one that returns class scores",
    )
