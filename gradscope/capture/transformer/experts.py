"""Measures which experts a router chose, and how evenly.

A routing is a choice of the largest entries along the last axis of a tensor, with one entry per
expert, inside the module that holds the experts. Experts are modules of one class in a list, or
slices of a parameter with three axes or more along its first axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradscope.capture.names import written_class
from gradscope.capture.transformer.attention import evenly, exact, operation

#: Number of tokens whose router probabilities are read.
_TOKENS = 1024
#: ``argmax`` and ``max`` count as a routing only over a distribution.
_DISTRIBUTIONS = ("Softmax", "Sigmoid")
_PASSED = ("View", "UnsafeView", "ReshapeAlias", "ToCopy", "Add")


@dataclass(slots=True)
class Routing:
    """One choice, on its device: counts [experts] and the mean entropy of the router.

    If the experts are modules, ``rows`` counts the rows of their inputs.
    """

    experts: tuple[nn.Module, ...]
    top_k: int
    tokens: int
    counts: Tensor
    entropy: Tensor
    rows: int | None = field(default=None)

    @property
    def dropped(self) -> float | None:
        """The share of assignments without a call of an expert; None if unknown."""
        every = self.tokens * self.top_k
        return None if self.rows is None or not 0 < self.rows <= every else 1 - self.rows / every

    def add(self, given: Tensor) -> None:
        """Note the rows of tokens of an expert's call; other inputs make the count unknown."""
        self.rows = -1 if given.dim() != 2 or self.rows == -1 else (self.rows or 0) + len(given)


class Holders:
    """Finds modules that hold experts; caches the result for each module and number of experts."""

    def __init__(self) -> None:
        self._found: dict[tuple[nn.Module, int], tuple[nn.Module, ...] | None] = {}

    def experts(self, module: nn.Module, count: int) -> tuple[nn.Module, ...] | None:
        """Return the expert modules of a module, if it holds that many; () if they are slices of
        one parameter.

        None if it holds no experts, or another number.
        """
        key = (module, count)
        if key not in self._found:
            self._found[key] = next(_held(module, count), None)
        return self._found[key]


def _held(module: nn.Module, count: int) -> Iterator[tuple[nn.Module, ...]]:
    for one in (module, *module.children()):
        if isinstance(one, nn.ModuleList | nn.ModuleDict) and len(one) == count:
            parts = tuple(one.children())
            alike = len({written_class(part) for part in parts}) == 1
            if alike and len(parts) == count and next(parts[0].parameters(), None) is not None:
                yield parts
        if any(p.dim() >= 3 and len(p) == count for p in one.parameters(recurse=False)):
            yield ()


def is_distribution(scores: Tensor) -> bool:
    """Return True if a softmax or a sigmoid made the scores."""
    node = scores.grad_fn
    while node is not None and operation(node) in _PASSED:
        node = node.next_functions[0][0] if node.next_functions else None
    return node is not None and operation(node) in _DISTRIBUTIONS


def routing(scores: Tensor, chosen: Tensor, experts: tuple[nn.Module, ...]) -> Routing:
    """Measure a choice of experts.

    Args:
        scores: [..., experts], the router's output.
        chosen: [..., k], or [...] for one expert each: the numbers of the experts.
        experts: the modules; () if they are slices of a parameter.
    """
    count = scores.shape[-1]
    tokens = scores.numel() // count
    flat = chosen.reshape(-1)
    if flat.device.type == "cpu":
        counts = torch.bincount(flat, minlength=count)
    else:  # without a wait for the device
        counts = (flat[:, None] == torch.arange(count, device=flat.device)).sum(0)
    return Routing(
        experts,
        max(1, flat.numel() // max(1, tokens)),
        tokens,
        counts.to(exact(scores)),
        _entropy(scores.reshape(-1, count)),
    )


def _entropy(scores: Tensor) -> Tensor:
    """Return the mean entropy of the router's probabilities, from scores before or after a softmax.

    Scores without a negative entry count as probabilities, after division by their sum.
    """
    places = torch.tensor(evenly(len(scores), _TOKENS), device=scores.device)
    some = scores.index_select(0, places).to(exact(scores))
    normalised = some / some.sum(-1, keepdim=True)
    logits = torch._softmax(some, -1, False)
    rows = torch.where((some < 0).any(), logits, normalised)
    mean: Tensor = torch.special.entr(rows).sum(-1).nanmean()
    return mean
