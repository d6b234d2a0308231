"""Checks the inputs of modules at their first call: axes scrambled by a view, and padding among
tokens."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Iterator, Sequence
from linecache import getline
from typing import Any

import torch
from torch import nn

from gradscope.capture.names import modules_by_name
from gradscope.capture.shards import PLAIN
from gradscope.explain.shared.frames import in_library, is_hidden, outwards, shown
from gradscope.records.loop_figures import LoopFact
from gradscope.training.models import Models

#: A view in the text of a script, how many lines above a call it is searched for, and in how many
#: functions.
_VIEW, _ABOVE, _FRAMES = re.compile(r"\b(view|reshape)\("), 12, 3
#: Fewer sequences, or shorter ones, say little of the padding.
_SEQUENCES, _LENGTH = 4, 4
_Module = weakref.ref[nn.Module]


class FirstInputs:
    """Keeps only shapes and the line of the call, not the input."""

    def __init__(self) -> None:
        self._scrambled: list[tuple[_Module, tuple[tuple[int, ...], ...], str | None]] = []
        self._padded: list[tuple[_Module, int, int, int]] = []

    def called(self, module: nn.Module, args: Sequence[Any]) -> None:
        """Note the first call of a module."""
        given = args[0] if args else None
        if not isinstance(given, torch.Tensor) or type(given) not in PLAIN:
            return
        if given.is_meta or given.layout != torch.strided or given.is_nested:
            return
        if isinstance(module, nn.Embedding):
            found = None if module.padding_idx is None else _among(given, module.padding_idx)
            if found is not None:
                self._padded.append((weakref.ref(module), module.padding_idx or 0, *found))
        elif is_scrambled(given):
            assert given._base is not None
            shapes = tuple(given._base.shape), tuple(given.shape)
            self._scrambled.append((weakref.ref(module), shapes, _view_before()))

    def facts(self, models: Models) -> Iterator[LoopFact]:
        """Yield the facts on the modules of a model."""
        if not self._scrambled and not self._padded:
            return
        named = {
            id(module): (models.name(model), name)
            for model in models
            for name, module in modules_by_name(model.module).items()
        }
        for ref, shapes, line in self._scrambled:
            model, name = named.get(id(ref()), (None, ""))
            if model is not None:
                yield LoopFact("scrambled", name, model, shapes=shapes, location=line)
        for ref, index, inner, count in self._padded:
            model, name = named.get(id(ref()), (None, ""))
            if model is not None:
                figures = float(index), float(count)
                yield LoopFact("padding", name, model, count=inner, figures=figures)


def is_scrambled(tensor: torch.Tensor) -> bool:
    """Return True if a view has the axis sizes of its base in another order, although no number
    moved. ``permute`` also permutes the strides. If a view does not, its axes are scrambled.
    """
    base = tensor._base
    if base is None or base.dim() < 2 or not (tensor.is_contiguous() and base.is_contiguous()):
        return False
    # A batch is often a part of a larger base: then only its samples are compared.
    first = 0 if base.numel() == tensor.numel() else 1
    return any(_permuted(base.shape[skip:], tensor.shape[skip:]) for skip in {first, 1})


def _permuted(before: Sequence[int], after: Sequence[int]) -> bool:
    """Return True if the sizes above 1 are the same in another order."""
    one, other = ([size for size in sizes if size > 1] for sizes in (before, after))
    return one != other and sorted(one) == sorted(other)


def _among(tokens: torch.Tensor, index: int) -> tuple[int, int] | None:
    """Return the number of sequences with the padding index between other tokens, and the number of
    all sequences; None if these are fewer than half, or if the indices form runs."""
    if tokens.dim() != 2 or tokens.shape[0] < _SEQUENCES or tokens.shape[1] < _LENGTH:
        return None
    if tokens.is_floating_point():
        return None
    other = (tokens != index).int()
    begun, left = other.cumsum(1) > 0, other.flip(1).cumsum(1).flip(1) > 0
    inner = (other == 0) & begun & left
    starts = inner & torch.nn.functional.pad(other[:, :-1] > 0, (1, 0), value=False)
    rows, runs, count = (int(one) for one in (inner.any(1).sum(), starts.sum(), inner.sum()))
    padding = int((other == 0).sum())
    if 2 * rows < len(tokens) or count > 2 * runs or 2 * count < padding or runs < 2 * rows:
        return None
    return rows, len(tokens)


def _view_before() -> str | None:
    """Return the nearest line above the running call that makes a view, in its function or the next
    outer ones; else the line of the call."""
    line, functions = None, 0
    for frame in outwards(sys._getframe(1)):
        file = frame.f_code.co_filename
        if is_hidden(file) or in_library(file):
            continue
        number = frame.f_lineno
        line = line or f"{shown(file)}:{number}"
        top = max(frame.f_code.co_firstlineno, number - _ABOVE)
        for above in range(number, top - 1, -1):
            if _VIEW.search(getline(file, above)):
                return f"{shown(file)}:{above}"
        functions += 1
        if functions == _FRAMES:
            break
    return line
