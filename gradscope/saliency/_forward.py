"""Calls a model on pictures, and reads the explained score from its output; of a segmentation, the
score is the mean of a class's map over fixed pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.errors import OptionError
from gradscope.nesting import find, replaced

#: Pixels of a segmentation: those predicted as the class ("predicted"), "all", or one for each
#: picture: row and column [N, 2] in the model's input.
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
        one's pixels.
        """
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
        background: a class that is explained only if there is no other.
    """
    images, classes, height, width = maps.shape
    predicted = classes_of(maps)
    counts = torch.stack([(predicted == c).sum(dim=(1, 2)) for c in range(classes)], dim=1)
    shares = counts / (height * width)
    dtype = torch.promote_types(maps.dtype, torch.float32)  # the mean of many halves needs digits
    everywhere = torch.full_like(predicted, 1 / (height * width), dtype=dtype)
    none = torch.zeros(images, dtype=torch.bool, device=maps.device)
    if isinstance(pixels, Tensor):
        scale = torch.tensor([height / size[0], width / size[1]], device="cpu")
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


@dataclass(frozen=True, slots=True)
class Objective:
    """The explained score of each image: a class's logit, or its difference to another logit.

    ``target`` and ``versus`` are class ids [N]; the default target is the class with the highest
    logit.
    """

    target: Tensor | None = None
    versus: Tensor | None = None

    def __call__(self, logits: Tensor, owners: Tensor) -> Tensor:
        """Return the score [M] of logits [M, classes]; ``owners`` [M] has the index of each row's
        image."""
        if self.target is None:
            return logits.max(dim=1).values
        rows = torch.arange(len(logits), device=logits.device)
        score = logits[rows, self.target[owners]]
        return score if self.versus is None else score - logits[rows, self.versus[owners]]

    def to(self, device: torch.device) -> Objective:
        """Return the objective with its class ids on a device."""
        target = None if self.target is None else self.target.to(device)
        versus = None if self.versus is None else self.versus.to(device)
        return Objective(target, versus)

    def check(self, classes: int) -> None:
        """Raise OptionError for an id that is no class of the model."""
        for ids in (self.target, self.versus):
            wrong = [] if ids is None else [i for i in ids.tolist() if not 0 <= i < classes]
            if wrong:
                raise OptionError(
                    f"there is no class {wrong[0]}: the model has {classes} classes",
                    help=f"name a class from 0 to {classes - 1}",
                )


@dataclass(frozen=True)
class ModelInputs:
    """A model call whose pictures change from pass to pass; without other arguments, they are the
    only input.

    Attributes:
        pictures: the tensor among the arguments, at any depth, that pictures replace.
        rows: the number of pictures. A tensor with that many rows, or with one, follows them
            row by row; anything else is passed unchanged.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pictures: Tensor | None = None
    rows: int = 1

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], pictures: Tensor) -> ModelInputs:
        """Make the call in which ``pictures``, one of the tensors, is explained."""

        def fixed(tensor: Tensor) -> Tensor:
            return tensor if tensor is pictures else tensor.detach()

        args, kwargs = replaced((args, dict(kwargs)), Tensor, fixed)
        return cls(args, kwargs, pictures, len(pictures))

    @property
    def names(self) -> list[str]:
        """The names of the fixed tensors: ``1``, ``meta``, ``batch.meta``."""
        named = {**{str(i): each for i, each in enumerate(self.args)}, **self.kwargs}
        return [name for name, tensor in find(named, Tensor) if tensor is not self.pictures]

    def to(self, device: torch.device) -> ModelInputs:
        """Return the inputs with the fixed tensors on a device."""
        return self._with(lambda tensor: tensor.to(device), self.rows)

    def some(self, rows: Sequence[int]) -> ModelInputs:
        """Return the call for some of the pictures."""
        places = torch.tensor(rows, device="cpu")
        return self._with(lambda tensor: self._picked(tensor, places), len(rows))

    def first(self, rows: int) -> ModelInputs:
        """Return the call for as many pictures, each with the first row of the fixed inputs."""
        return self.some([0] * rows)

    def call(self, model: nn.Module, pictures: Tensor, owners: Tensor) -> Any:
        """Call the model on pictures [M, C, H, W]; ``owners`` [M] is the index of the fixed inputs
        of each.

        Fixed inputs are copied, because a model may write into them.
        """
        if self.pictures is None:
            return model(pictures)

        def given(tensor: Tensor) -> Tensor:
            return pictures if tensor is self.pictures else self._picked(tensor, owners).clone()

        args, kwargs = replaced((self.args, dict(self.kwargs)), Tensor, given)
        return model(*args, **kwargs)

    def _picked(self, tensor: Tensor, rows: Tensor) -> Tensor:
        if not tensor.dim() or len(tensor) not in (1, self.rows):
            return tensor
        return tensor[rows.to(tensor.device) % len(tensor)]

    def _with(self, change: Any, rows: int) -> ModelInputs:
        def one(tensor: Tensor) -> Tensor:
            changed: Tensor = tensor if tensor is self.pictures else change(tensor)
            return changed

        args, kwargs = replaced((self.args, dict(self.kwargs)), Tensor, one)
        return replace(self, args=args, kwargs=kwargs, rows=rows)


@contextmanager
def frozen(model: nn.Module, seed: int) -> Iterator[None]:
    """Freeze all parameters and seed dropout in the block; restore the model afterwards.

    The model's mode does not change. A model left in training mode gets its buffers (running means)
    back too.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    kept = []
    if any(module.training for module in model.modules()):
        kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    cuda = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(cuda)):
        torch.manual_seed(seed)
        for parameter in trainable:
            parameter.requires_grad = False  # its method may be hidden by a misspelt flag
        try:
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad = True
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


@dataclass(slots=True)
class Forward:
    """One model's forward for pictures [N, C, H, W] and for variants of them.

    Attributes:
        others: the fixed inputs.
        pixels: the pixels of a segmentation that count; None: those predicted as the class.
        target: the requested classes [N], if any.
        background: a class that is explained only on request.
        segmentation: the classes predicted in the pictures; None for a classifier.
    """

    model: nn.Module
    pictures: Tensor
    others: ModelInputs
    pixels: Pixels | None = None
    target: Tensor | None = None
    background: int | None = None
    segmentation: Segmentation | None = None

    def __call__(self, inputs: Tensor, owners: Tensor) -> Tensor:
        """Return the scores [M, classes] of inputs [M, C, H, W], with a graph if the inputs have
        one.

        ``owners`` [M] has the index of the picture of each row. The model may write into the
        inputs.

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
        """Return the model's output for inputs [M, C, H, W]."""
        return self.others.call(self.model, inputs, owners)

    def _segmentation(self) -> Segmentation:
        rows = len(self.pictures)
        # Tensors kept here take part in graphs, and the first forward may have none.
        with torch.inference_mode(False), torch.no_grad():
            everyone = torch.arange(rows, device=self.pictures.device)
            maps = class_maps(self.output(self.pictures.clone(), everyone), rows)
        assert maps is not None  # the same model on the same kind of input
        size = (self.pictures.shape[-2], self.pictures.shape[-1])
        pixels = "predicted" if self.pixels is None else self.pixels
        return segmentation(maps.clone(), pixels, size, self.target, self.background)


def class_scores(output: Any, rows: int) -> Tensor | None:
    """Return the first floating tensor [rows, classes] in a nested output; without one, the first
    [rows], with one score each.
    """
    floating = [tensor for _, tensor in find(output, Tensor) if tensor.is_floating_point()]
    found = [tensor for tensor in floating if tensor.dim() in (1, 2) and len(tensor) == rows]
    flat = next((tensor for tensor in found if tensor.dim() == 2), None)
    if flat is not None or class_maps(output, rows) is not None:
        return flat
    return found[0][:, None] if found else None


def class_maps(output: Any, rows: int) -> Tensor | None:
    """Return the first floating tensor [rows, classes, h, w] in a nested output."""
    for _, tensor in find(output, Tensor):
        if tensor.dim() == 4 and tensor.is_floating_point() and len(tensor) == rows:
            return tensor
    return None


def probabilities(scores: Tensor) -> Tensor:
    """Return scores [M, classes] after softmax; a single score after the logistic function."""
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
