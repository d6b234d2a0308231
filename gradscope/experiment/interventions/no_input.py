"""Gives the model constant inputs: the mean of the first batch, or its first token."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from gradscope.experiment.interventions._models import (
    given_tensors,
    is_data,
    on_calls,
    with_tensors,
)
from gradscope.experiment.interventions._relation import Pairs
from gradscope.leaks.meaning import role_named
from gradscope.training.replicas import batch_comes_first


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Replace the inputs of the outermost calls. Labels, masks and lengths stay.

    ``notes`` has the "relation" of the targets to the inputs: its "strength", the strength of a
    "planted" relation, and whether the inputs are "discrete". It counts the calls with an input as
    "given", and those with the same input for every sample as "constant".
    """
    notes.update(given=0, constant=0)
    kept: dict[tuple[int, int], torch.Tensor] = {}  # of the first call, by module and number
    pairs = Pairs()

    def change(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        new, given = {}, []
        for number, (name, tensor, place) in enumerate(given_tensors(module, args, kwargs)):
            if is_data(tensor) and tensor.dtype != torch.bool and role_named(name, tensor) is None:
                mean = kept.setdefault((id(module), number), _mean(tensor))
                new[place] = _filled(tensor, mean)
                given.append(tensor)
        dim = 0 if batch_comes_first(module) else 1
        pairs.given(given, dim)
        notes["given"] += bool(given)
        notes["constant"] += bool(given) and all(_is_constant(one, dim) for one in given)
        return with_tensors(args, kwargs, new)

    def tested() -> None:
        found = pairs.dependence()
        notes.update(relation=None if found is None else asdict(found), samples=pairs.samples)

    patches.callback(tested)
    on_calls(patches, notes, change, pairs.returned)


def _is_constant(tensor: torch.Tensor, dim: int) -> bool:
    """Return True if all samples are equal, and there are two or more."""
    if tensor.dim() <= dim or tensor.shape[dim] < 2:
        return False
    return bool((tensor == tensor.narrow(dim, 0, 1)).all())


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sample that replaces all of a first batch."""
    if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.uint8):
        return tensor.flatten()[:1].clone()  # a token, or an index
    values = tensor if tensor.is_complex() else tensor.double()
    # For a batch of one, the mean over it would be the sample.
    mean = values.mean(0) if len(tensor) > 1 else values.mean()
    return mean.to(tensor.dtype)


def _filled(tensor: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape that holds nothing but the mean."""
    fits = mean.shape == tensor.shape[1:]
    filled = torch.empty_like(tensor)
    filled.copy_(mean if fits else mean.flatten().double().mean())
    return filled
