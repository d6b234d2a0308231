"""Finds blocks that add to the residual stream, and measures their outputs.

A block is one of several modules of one class in a container. Its output has the shape of its
input, and is the input plus something, normalised or not. The autograd graph between the two shows
it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from gradscope.capture import one_pass
from gradscope.capture.graph import LEAF, Edge
from gradscope.capture.names import modules_of, written_class
from gradscope.capture.transformer.attention import evenly, exact, operation
from gradscope.patterns import wraps

#: Number of rows of the last axis to read.
_ROWS = 64
#: Operations allowed between the sum and the block's output: normalisation, casts, shapes.
_AFTER = {
    *("NativeLayerNorm", "FusedRmsNorm", "View", "UnsafeView", "ReshapeAlias", "ToCopy", "Clone"),
    *("Transpose", "Permute", "Alias"),
}
_MOST = 96


def repeated_blocks(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Return modules with children, if their container holds several of their class, with that
    container."""
    found: dict[nn.Module, nn.Module] = {}
    for container in modules_of(model):
        if not isinstance(container, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        parts = [_inner(part) for part in container.children()]
        classes = Counter(map(written_class, parts))
        for part in parts:
            if classes[written_class(part)] > 1 and part._modules:
                found[part] = container
    return found


def _inner(module: nn.Module) -> nn.Module:
    """Return the module without wrappers."""
    while wraps(module._modules):
        module = next(iter(module.children()))
    return module


def stream(tensors: Iterable[tuple[str, Tensor]]) -> Tensor | None:
    """Return the first tensor that can be a residual stream: floating, with two axes or more."""
    for _, tensor in tensors:
        if tensor.is_floating_point() and tensor.dim() >= 2 and tensor.numel():
            return tensor
    return None


def adds_to(output: Tensor, given: Edge | None) -> bool | None:
    """Return True if ``output`` is a sum with the tensor of an edge; None without a graph."""
    if output.grad_fn is None or given is None:
        return None
    waiting = [(output.grad_fn, False)]
    seen: set[tuple[Node, bool]] = set()
    while waiting and len(seen) < _MOST:
        node, added = waiting.pop(0)
        if (node, added) in seen:
            continue
        seen.add((node, added))
        name = operation(node)
        sums = added or name == "Add"
        if name != "Add" and name not in _AFTER:
            continue
        for before, number in node.next_functions:
            if before is None:
                continue
            leaf = id(before.variable) if isinstance(before, LEAF) else before
            if sums and (leaf, number) == given:
                return True
            waiting.append((before, sums))
    return False


def figures(output: Tensor, given: Tensor | None) -> Tensor:
    """Compute rms, kurtosis, max ÷ median, largest, share added, cosine; NaN means unknown.

    Args:
        output: [..., width]. Some rows are read; the maximum is over all elements.
        given: the block's input, of the same shape; None if it was overwritten.
    """
    kind = exact(output)
    sizes = output.shape[:-1]
    rows = torch.tensor(evenly(math.prod(sizes), _ROWS), device=output.device)
    read = _rows_of(output, rows)
    some = read.to(kind)
    before = None if given is None else _rows_of(given, rows).to(kind)
    low, high = torch.aminmax(output)
    largest = torch.maximum(low.neg(), high).to(kind)
    found = one_pass.residual(some, before)
    if found is None:
        found = _of_rows(some, before)
    rms, kurtosis, added, cosine = found
    return torch.stack([rms, kurtosis, largest / read.abs().median(), largest, added, cosine])


def _rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return rows of the last axis, by their numbers."""
    if tensor.is_contiguous():
        return tensor.view(-1, tensor.shape[-1]).index_select(0, rows)
    return tensor[torch.unravel_index(rows, tensor.shape[:-1])]


def _of_rows(some: Tensor, before: Tensor | None) -> Tensor:
    """Compute what ``one_pass.residual`` does, with PyTorch."""
    squares = (some - some.mean()).square()
    norm = some.norm()
    added = cosine = torch.full_like(norm, math.nan)
    if before is not None:
        added = (some - before).norm() / norm
        cosine = (some * before).sum() / (norm * before.norm())
    kurtosis = squares.square().mean() / squares.mean().square()
    return torch.stack([some.square().mean().sqrt(), kurtosis, added, cosine])
