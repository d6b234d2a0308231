"""The inputs of a model: the explained pictures, and inputs that stay fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.nesting import find, replaced


@dataclass(frozen=True)
class ModelInputs:
    """A call of a model whose pictures change from pass to pass; without arguments they are all.

    Attributes:
        pictures: the tensor among the arguments, at any depth, in whose place pictures go.
        rows: how many pictures there are: a tensor of as many rows, or of one, goes along with
            them, row by row; anything else is passed as it is.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pictures: Tensor | None = None
    rows: int = 1

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], pictures: Tensor) -> ModelInputs:
        """The call in which ``pictures``, one of the tensors, is explained."""

        def fixed(tensor: Tensor) -> Tensor:
            return tensor if tensor is pictures else tensor.detach()

        args, kwargs = replaced((args, dict(kwargs)), Tensor, fixed)
        return cls(args, kwargs, pictures, len(pictures))

    @property
    def names(self) -> list[str]:
        """The names of the tensors that are held fixed: ``1``, ``meta``, ``batch.meta``."""
        named = {**{str(i): each for i, each in enumerate(self.args)}, **self.kwargs}
        return [name for name, tensor in find(named, Tensor) if tensor is not self.pictures]

    def to(self, device: torch.device) -> ModelInputs:
        """The same with its fixed tensors on a device."""
        return self._with(lambda tensor: tensor.to(device), self.rows)

    def some(self, rows: Sequence[int]) -> ModelInputs:
        """The call for some of the pictures."""
        places = torch.tensor(rows)
        return self._with(lambda tensor: self._picked(tensor, places), len(rows))

    def first(self, rows: int) -> ModelInputs:
        """The call for as many pictures, all of which get the first row of what is held fixed."""
        return self.some([0] * rows)

    def call(self, model: nn.Module, pictures: Tensor, owners: Tensor) -> Any:
        """The model's output for pictures [M, C, H, W]; ``owners`` [M] says whose inputs each has.

        What is held fixed is copied: a model may write into it.
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
