"""Checks the roots of backward: a repeated loss, a loss without parameters, a constant.

It also records the course of all losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.records.loop_figures import Course
from gradscope.rules import Blocks
from gradscope.training.loop.loss_walk import operations

_EXACT = frozenset({torch.float32, torch.float64})
_LEAF, _REPEATED = frozenset({"leaf"}), frozenset({"repeated"})
_PART = frozenset({"part"})


class Losses:
    """The losses of a loop, one after the other.

    Facts of a backward:

    - "repeated": it begins with the same tensor as the one before, and adds the same gradients
    - "part": a term of this loss is the tensor that the backward before started from
    - "leaf": no operation made its loss, as for ``torch.tensor(loss.item())``

    Attributes:
        same: the number of backwards, from the first on, with the same loss to float32 precision or
            better; 0 after the first difference.
        first: that loss.
    """

    #: Number of losses in the first blocks of the course.
    BLOCK = 4

    def __init__(self) -> None:
        self.same = 0
        self.first: float | None = None
        self._differs = False
        self._latest: RememberedTensor | None = None
        self._count = 0
        self._blocks = Blocks(self.BLOCK)

    @property
    def course(self) -> Course | None:
        """Return the course of all losses; None if there were too few."""
        return self._blocks.course

    def backward_begins(self, roots: Sequence[object], loss: float | None) -> frozenset[str]:
        """Return the facts of a backward."""
        self._count += 1
        self._blocks.add(self._count, loss)
        if not self._differs:
            # In fewer digits losses are often equal that are not the same.
            exact = any(getattr(one, "dtype", None) in _EXACT for one in roots)
            self._compare(loss if exact else None)
        if not roots:
            self._latest = None
            return _LEAF
        if len(roots) != 1 or not isinstance(roots[0], torch.Tensor):
            self._latest = None
            return frozenset()
        root = roots[0]
        latest = None if self._latest is None else self._latest()
        if latest is root:
            return _REPEATED
        self._latest = remembered(root)
        node, before = root.grad_fn, None if latest is None else latest.grad_fn
        if node is None or before is None:
            return frozenset()
        return _PART if any(one is before for one in operations(node)) else frozenset()

    def cleared(self) -> None:
        """Note cleared gradients: a later backward adds nothing twice."""
        self._latest = None

    def _compare(self, loss: float | None) -> None:
        if self.same == 0:
            self.first = loss
        if loss is None or loss != self.first:
            self._differs, self.same = True, 0
        else:
            self.same += 1
