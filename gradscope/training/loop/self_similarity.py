"""Contrastive losses whose positive is the sample itself."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node

from gradscope.training.loop.loss_walk import (
    CLASSES,
    SOFTMAX,
    is_linked_beside,
    kind,
    operations,
    saved,
)

#: Fewer rows could be symmetric by chance.
_FEWEST = 4
#: How far scores may be from symmetric, and how much they must differ.
_NEAR, _SPREAD = 1e-4, 1e-2


def own_positive(root: Node) -> tuple[Node, tuple[float, ...]] | None:
    """Return the classification loss, and its number of rows, if it is all of a loss, the scores
    are a symmetric matrix of similarities, and the target of each row is its diagonal element."""
    losses = [one for one in operations(root) if kind(one) in CLASSES]
    rows = [_rows(one) for one in losses]
    if not losses or not all(rows) or is_linked_beside(root, losses):
        return None
    return losses[0], (float(rows[0]),)


def _rows(loss: Node) -> int:
    """Return the number of rows of such scores; 0 for other scores."""
    softmax, target = loss.next_functions[0][0], saved(loss).get("target")
    if softmax is None or kind(softmax) not in SOFTMAX or target is None:
        return 0
    count = target.numel()
    scores = saved(softmax).get("result")
    if scores is None or count < _FEWEST or scores.shape != (count, count):
        return 0
    if not torch.equal(target, torch.arange(count, device=target.device)):
        return 0
    # Of log-probabilities, each row lacks a number of its own.
    scores = scores.detach().double()
    skew = scores - scores.T
    skew = skew - skew[:, :1] + skew[:, 0]
    symmetric = bool(skew.abs().max() < _NEAR * max(1.0, float(scores.abs().max())))
    return count if symmetric and float(scores.max() - scores.min()) > _SPREAD else 0
