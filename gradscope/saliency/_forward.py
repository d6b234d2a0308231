"""Calls a model on pictures, and reads the explained score from its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.errors import OptionError
from gradscope.nesting import find, replaced
from gradscope.saliency._segmentation import Pixels, Segmentation, segmentation


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
        places = torch.tensor(rows)
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
